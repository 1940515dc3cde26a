"""The documentation of the API as one page, made from its OpenAPI document.

The page has no scripts and loads nothing, and its content security policy forbids both.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

import msgspec

from everbell.api.route import HTML
from everbell.http.message import HttpRequest, HttpResponse

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .5rem; border: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
h2 { margin-top: 3rem; border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); padding-top: 1rem; }
h3 { margin: 2rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; }
td { padding: .2rem 1rem .2rem 0; vertical-align: top; overflow-wrap: anywhere; }
td:first-child { width: 15rem; }
nav td:first-child { width: 27rem; }
details { margin: .5rem 0; }
@media (max-width: 40rem) {
  table, tbody, tr, td { display: block; }
  td, td:first-child, nav td:first-child { width: auto; padding: 0; }
  td:first-child { margin-top: .6rem; }
  code, h2, h3 { overflow-wrap: anywhere; }
}
summary { cursor: pointer; opacity: .75; }
"""
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"
_HEADERS = (
    ("content-security-policy", f"{_POLICY}; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)

_EXAMPLE = """\
curl {server}/v1/tenants/default/events -H 'content-type: application/json' \\
  -d '{{"in": "20m", "to": "https://example.com/hook", "payload": {{"user": 7}}}}'
"""


def front_page(request: HttpRequest) -> HttpResponse:
    """A short page with the ways into everything else."""
    links = (
        ("/docs", "the API, for people"),
        ("/openapi.json", "the API, for programs"),
        ("/healthz", "liveness: whether the process works"),
        ("/readyz", "readiness: whether it takes requests"),
        ("/metrics", "metrics, for Prometheus"),
    )
    rows = "".join(_row(f'<a href="{path}">{path}</a>', text) for path, text in links)
    return _page("Everbell", f"<p>Hand over an event and a time, and forget about it.</p><table>{rows}</table>")


def docs_page(document: dict[str, Any], server: str) -> HttpResponse:
    """Every operation and every schema of an OpenAPI document, with an example for the server at this URL."""
    info = document["info"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    intro = (
        f'<p>{escape(info["description"])} Version {escape(info["version"])}. <a href="/openapi.json">OpenAPI</a></p>'
        f"<pre>{escape(_EXAMPLE.format(server=server))}</pre>"
    )
    contents = ""
    for tag in document["tags"]:
        contents += _row(f"<b>{escape(tag['name'])}</b>", escape(tag["description"]))
        contents += "".join(
            _row(_link(operation["operationId"], f"{method} {path}"), escape(operation["summary"]))
            for method, path, operation in operations
            if tag["name"] in operation["tags"]
        )
    told = "".join(_operation(*each) for each in operations)
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    body = f"{intro}<nav><table>{contents}</table></nav>{told}<h2>Schemas</h2>{schemas}"
    return _page(f"{info['title']} API", body)


def _page(title: str, content: str) -> HttpResponse:
    title = escape(title)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{title}</h1>{content}</html>'
    )
    return HttpResponse(200, page.encode(), HTML, _HEADERS)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    name = escape(operation["operationId"])
    rows = [
        _row(f"<code>{escape(parameter['name'])}</code> in the {parameter['in']}", escape(_told(parameter)))
        for parameter in operation.get("parameters", ())
    ]
    body = operation.get("requestBody")
    if body is not None:
        for kind, media in body["content"].items():
            example = f"<pre>{_json(media['example'])}</pre>" if "example" in media else ""
            rows.append(_row(f"body, {escape(kind)}", _kind(media["schema"]) + example))
    answers = {status: _answer(response) for status, response in operation["responses"].items()}
    rows += [_row(status, text) for status, text in answers.items() if status < "400"]
    problems = {status: text for status, text in answers.items() if status >= "400"}
    return (
        f'<h2 id="{name}">{escape(operation["summary"])}</h2><p><code>{method} {escape(path)}</code></p>'
        f"<p>{escape(operation['description'])}</p>"
        f"<table>{''.join(rows)}</table>{_folded(', '.join(problems), problems)}"
    )


def _answer(response: dict[str, Any]) -> str:
    kinds = ", ".join(_kind(media["schema"]) for media in response["content"].values())
    return f"{escape(response['description'])}: {kinds}"


def _folded(title: str, texts: dict[str, str]) -> str:
    """A table that opens when its title is clicked: the problems are nearly the same everywhere."""
    if not texts:
        return ""
    rows = "".join(_row(name, text) for name, text in texts.items())
    return f"<details><summary>problems: {title}</summary><table>{rows}</table></details>"


def _told(parameter: dict[str, Any]) -> str:
    """A parameter in a few words."""
    schema = parameter["schema"]
    words = [parameter.get("description", "")]
    if "enum" in schema:
        words.append(" | ".join(map(str, schema["enum"])))
    if "default" in schema:
        words.append(f"default {schema['default']}")
    return "; ".join(filter(None, words))


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words, with a link where it has a name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _link(name, name)
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return escape(" | ".join(map(str, schema["enum"])))
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_kind(schema['items'])}"
    return escape(str(schema.get("type", "anything")))


def _schema(name: str, schema: dict[str, Any]) -> str:
    """The fields of an object, and its JSON Schema."""
    required = schema.get("required", ())
    rows = "".join(
        _row(f"<code>{escape(field)}</code>{' *' if field in required else ''}", _field(told))
        for field, told in schema.get("properties", {}).items()
    )
    examples = "".join(f"<pre>{_json(example)}</pre>" for example in schema.get("examples", ()))
    return (
        f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(schema.get("description", ""))}</p>{examples}'
        f"<table>{rows}</table><details><summary>as JSON Schema</summary><pre>{_json(schema)}</pre></details>"
    )


def _json(value: object) -> str:
    return escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _field(schema: dict[str, Any]) -> str:
    """The type, description and default of a field. A null for an optional field is left out."""
    default = schema.get("default")
    kinds = [kind for kind in schema.get("anyOf", [schema]) if default is not None or kind.get("type") != "null"]
    told = [kind["description"] for kind in (schema, *kinds) if "description" in kind]
    words = [" or ".join(map(_kind, kinds)), *map(escape, dict.fromkeys(told))]
    if default is not None:
        words.append(f"default <code>{escape(msgspec.json.encode(default).decode())}</code>")
    return "; ".join(filter(None, words))


def _link(name: str, text: str) -> str:
    return f'<a href="#{escape(name)}"><code>{escape(text)}</code></a>'


def _row(name: str, text: str) -> str:
    return f"<tr><td>{name}</td><td>{text}</td></tr>"
