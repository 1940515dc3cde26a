"""The documentation of the API as one page, made from its OpenAPI document.

The page needs nothing but itself: no scripts, no fonts, nothing from elsewhere, and its content security policy lets
nothing in.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

import msgspec

from everbell.server.message import Response
from everbell.server.route import HTML

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .5rem; border: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
h2 { margin-top: 2.5rem; border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; }
td { padding: .2rem 1rem .2rem 0; vertical-align: top; }
summary { cursor: pointer; }
"""
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"
_HEADERS = (
    ("content-security-policy", f"{_POLICY}; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)


def front_page() -> Response:
    """A short page with the ways into everything else."""
    links = (
        ("/docs", "the API, for people"),
        ("/openapi.json", "the API, for programs"),
        ("/healthz", "whether this process is worth keeping"),
        ("/readyz", "whether requests are welcome"),
        ("/metrics", "metrics, for Prometheus"),
    )
    rows = "".join(_row(f'<a href="{path}">{path}</a>', text) for path, text in links)
    return _page("Everbell", f"<p>Hand over an event and a time, and forget about it.</p><table>{rows}</table>")


def docs_page(document: dict[str, Any]) -> Response:
    """Every operation and every schema of an OpenAPI document."""
    info = document["info"]
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    intro = (
        f'<p>{escape(info["description"])} Version {escape(info["version"])}. <a href="/openapi.json">OpenAPI</a></p>'
    )
    return _page(f"{info['title']} API", f"{intro}{operations}<h2>Schemas</h2>{schemas}")


def _page(title: str, content: str) -> Response:
    title = escape(title)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{title}</h1>{content}</html>'
    )
    return Response(200, page.encode(), HTML, _HEADERS)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    name = escape(operation["operationId"])
    rows = [
        _row(f"<code>{escape(parameter['name'])}</code> {parameter['in']}", escape(_told(parameter)))
        for parameter in operation.get("parameters", ())
    ]
    body = operation.get("requestBody")
    if body is not None:
        rows += [_row(f"body {escape(kind)}", _kind(media["schema"])) for kind, media in body["content"].items()]
    for status, response in operation["responses"].items():
        kinds = ", ".join(_kind(media["schema"]) for media in response["content"].values())
        rows.append(_row(status, f"{escape(response['description'])}: {kinds}"))
    return (
        f'<h2 id="{name}"><code>{method.upper()} {escape(path)}</code></h2>'
        f"<p>{escape(operation['summary'])}</p><table>{''.join(rows)}</table>"
    )


def _told(parameter: dict[str, Any]) -> str:
    """What a parameter is, in a few words."""
    schema = parameter["schema"]
    words = [parameter.get("description", "")]
    if "enum" in schema:
        words.append(" | ".join(map(str, schema["enum"])))
    if "default" in schema:
        words.append(f"default {schema['default']}")
    return "; ".join(filter(None, words))


def _kind(schema: dict[str, Any]) -> str:
    """A schema in one word, with a link where it has a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"array of {_kind(schema['items'])}"
    return escape(str(schema.get("type", "anything")))


def _schema(name: str, schema: dict[str, Any]) -> str:
    text = escape(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
    return f'<details open id="{escape(name)}"><summary>{escape(name)}</summary><pre>{text}</pre></details>'


def _row(name: str, text: str) -> str:
    return f"<tr><td>{name}</td><td>{text}</td></tr>"
