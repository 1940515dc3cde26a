"""Every operation of the HTTP API and every schema, made from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from everbell.api.application import ROUTES, TAGS
from everbell.api.openapi import PROBLEMS_OF_ALL, PROBLEMS_OF_KEYS, REFINED_DURATION, openapi
from everbell.http.problem import title_of
from reference.markdown import block, code, page, table

_INTRO = """\
Every operation, as a server describes it at `/docs` and in `/openapi.json`. [HTTP API](http-api.md) has the rules that
hold for all of them, and examples."""

_COMMON = """\
Required fields have a star. A duration is `250ms`, `90s`, `1h30m`, `PT20M` or a number of seconds; a time is RFC 3339
with an offset. An answer that is no success is a [Problem](#problem). Each operation names its own; besides, any
request can meet {all}, and where there are access keys {keys}:"""


def document() -> dict[str, Any]:
    """The OpenAPI document of a server that has everything."""
    return openapi(ROUTES, TAGS)


def routes_page() -> str:
    """The page."""
    described = document()
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    contents: dict[str, list[tuple[str, str]]] = {}
    for title, operation in operations:
        contents.setdefault(operation["tags"][0], []).append((_contents_link(title), operation["summary"]))
    common = _COMMON.format(all=_listed(PROBLEMS_OF_ALL), keys=_listed(PROBLEMS_OF_KEYS))
    met = sorted({status for _, operation in operations for status in _problems(operation)})
    schemas = described["components"]["schemas"].items()
    return page(
        "HTTP reference",
        _INTRO,
        common,
        table(("problem", "title"), [(str(status), title_of(status)) for status in met]),
        *(table((f"operations: {tag}", "purpose"), rows) for tag, rows in contents.items()),
        "## Operations",
        *(_operation(title, operation) for title, operation in operations),
        "## Schemas",
        *(_schema(name, schema) for name, schema in schemas),
    )


def _operation(title: str, operation: dict[str, Any]) -> str:
    parameters = [
        (code(each["name"]), each["in"], _kind(each["schema"]), each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {"content": {}})["content"].items()
    parameters += [("body", code(kind), _kind(media["schema"]), "") for kind, media in body]
    own = [status for status in _problems(operation) if status not in (*PROBLEMS_OF_ALL, *PROBLEMS_OF_KEYS)]
    example = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    parts = [
        f"### {title}",
        f"{operation['summary']}. {operation['description']}",
        table(("parameter", "where", "type", "meaning"), parameters),
        block(msgspec.json.encode(example).decode(), "json") if example is not None else "",
        table(("answer", "means", "body"), _answers(operation)),
        f"Problems: {_listed(own)}." if own else "",
    ]
    return "\n\n".join(filter(None, parts))


def _answers(operation: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for status, answer in operation["responses"].items():
        if not _is_problem(answer):
            kinds = [_kind(media["schema"]) for kind, media in answer["content"].items() if "problem" not in kind]
            headers = f"; headers {', '.join(map(code, answer['headers']))}" if "headers" in answer else ""
            yield status, answer["description"] + headers, " or ".join(kinds)


def _is_problem(answer: dict[str, Any]) -> bool:
    """Whether it is nothing but one: some say more than that."""
    return all("problem" in kind for kind in answer["content"])


def _problems(operation: dict[str, Any]) -> list[int]:
    return [int(status) for status, answer in operation["responses"].items() if _is_problem(answer)]


def _listed(statuses: Iterable[int]) -> str:
    return ", ".join(map(str, statuses))


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (code(field) + (" \\*" if field in required else ""), *_field(told))
        for field, told in schema.get("properties", {}).items()
    ]
    parts = [f"### {name}", schema.get("description", ""), table(("field", "type", "meaning"), rows)]
    if "enum" in schema:
        parts.append(_kind(schema))
    return "\n\n".join(filter(None, parts))


def _field(schema: dict[str, Any]) -> tuple[str, str]:
    """Its type and its meaning; that an optional one may also be null goes without saying."""
    default = schema.get("default")
    kinds = [kind for kind in schema.get("anyOf", [schema]) if default is not None or kind.get("type") != "null"]
    told = [kind["description"] for kind in (schema, *kinds) if "description" in kind and kind not in REFINED_DURATION]
    if default not in (None, [], {}):
        told.append(f"default {code(msgspec.json.encode(default).decode())}")
    return _one_of(kinds), "; ".join(dict.fromkeys(told))


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words, with a link where it has a name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    if "anyOf" in schema:
        return _one_of(schema["anyOf"])
    if "enum" in schema:
        return " or ".join(code(str(value)) for value in schema["enum"])
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_kind(schema['items'])}"
    if schema.get("format") == "date-time":
        return "time"
    return str(schema.get("type", "any JSON")) + _bounds(schema)


def _one_of(kinds: list[dict[str, Any]]) -> str:
    if kinds[: len(REFINED_DURATION)] == REFINED_DURATION:
        kinds = [{"type": "duration"}, *kinds[len(REFINED_DURATION) :]]
    return " or ".join(dict.fromkeys(map(_kind, kinds)))


def _bounds(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    return f", at least {low:,}" if low is not None else f", at most {high:,}" if high is not None else ""


def _contents_link(title: str) -> str:
    # A heading without a single word has no anchor that all readers of Markdown agree on.
    return code(title) if title.endswith(" /") else f"[{code(title)}](#{_anchor(title)})"


def _anchor(heading: str) -> str:
    """As the headings of a page get them."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "-_ ")
    return kept.replace(" ", "-")
