"""The OpenAPI 3.1 document, made from the table of routes and the types that it names.

The types describe the checks of the decoder. `_REFINED` adds later checks that JSON Schema can express, so that
generated clients and tests know them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from inspect import cleandoc
from types import GenericAlias, UnionType
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from everbell.api.route import JSON, ResponseKind, Route
from everbell.core.batch_item import ItemSpec
from everbell.core.spec import EventSpec
from everbell.edge.idempotency import KEY_LENGTH_MAX, KEY_PATTERN
from everbell.http.problem import CONTENT_TYPE, Problem, title_of

_REF = "#/components/schemas/{name}"
PROBLEMS_OF_KEYS = (401, 403)
PROBLEMS_OF_ALL = (400, 408, 414, 431, 500, 503, 504)

_TIME = {"format": "date-time"}
_PAYLOAD = Annotated[Any, Meta(description="any JSON, delivered as it came")]
_NULL = {"type": "null"}
_GIVEN = {"not": _NULL}

_TIMED: list[dict[str, Any]] = [
    {"required": ["at"], "properties": {"at": _GIVEN, "in": _NULL}},
    {"required": ["in"], "properties": {"in": _GIVEN, "at": _NULL}},
    {"required": ["repeat"], "properties": {"repeat": _GIVEN, "in": _NULL, "at": _NULL}},
]
_CREATES = [{**one, "properties": {**one["properties"], "mode": {"const": "create"}}} for one in _TIMED]
_PUTS = [
    {
        "required": [*one["required"], "id", "mode"],
        "properties": {**one["properties"], "id": _GIVEN, "mode": {"const": "put"}},
    }
    for one in _TIMED
]
_CANCEL = {
    "required": ["id", "mode"],
    "properties": {"id": _GIVEN, "mode": {"const": "cancel"}},
    "maxProperties": 2,
}

_REFINED: dict[str, dict[str, Any]] = {
    "EventSpec": {
        "description": "An event to schedule. One of `at` and `in`; none is needed where `repeat` says when.",
        "oneOf": _TIMED,
        "examples": [
            {
                "id": "order-17-timeout",
                "at": "2026-11-20T10:00:00Z",
                "key": "order-17",
                "payload": {"any": "json"},
                "to": "https://shop.example/timeouts",
                "tags": ["checkout"],
                "retry": {"max_attempts": 10, "backoff": "2s", "max_backoff": "10m"},
            }
        ],
    },
    "ItemSpec": {
        "description": "An event to schedule, to put in the place of the one with its id, or (with `cancel`) to end.",
        "oneOf": [*_CREATES, *_PUTS, _CANCEL],
        "examples": [{"mode": "cancel", "id": "order-17-timeout"}],
    },
    "RepeatSpec": {
        "description": "How an event comes again. Exactly one of `every` and `cron`.",
        "oneOf": [
            {"required": ["every"], "properties": {"every": _GIVEN, "cron": _NULL}},
            {"required": ["cron"], "properties": {"cron": _GIVEN, "every": _NULL}},
        ],
        "examples": [{"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "misfire": "latest"}],
    },
    "ChangeSpec": {"minProperties": 1, "not": {"required": ["at", "in"]}},
    "RescheduleSpec": {
        "description": "Another time for many events: one of `at`, `in`, `by`. They are named here or in the query.",
        "oneOf": [{"required": ["at"]}, {"required": ["in"]}, {"required": ["by"]}],
    },
}
# The schema that msgspec makes for a duration.
_DURATION = [{"type": "string"}, {"type": "integer"}, {"type": "number"}]
REFINED_DURATION = [
    {"type": "string", "pattern": r"^(([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h|d|w))+|[Pp][0-9.DHMSTWdhmstw]+)$"},
    {"type": "number", "minimum": 0, "description": "seconds"},
]
_TIMES = (
    ("EventSpec", "at"),
    ("ItemSpec", "at"),
    ("ChangeSpec", "at"),
    ("RescheduleSpec", "at"),
    ("RepeatSpec", "until"),
    ("PreviewSpec", "at"),
    ("BackfillSpec", "from"),
    ("BackfillSpec", "until"),
)

_PARAMETERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tenant": ("the tenant", "shop", {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}),
    "id": ("the event's id", "order-17-timeout", {"type": "string", "minLength": 1, "maxLength": 512}),
    "key": ("the access key's id", "3q9x7d", {"type": "string", "minLength": 1, "maxLength": 64}),
    "file": ("the file's name", "app.js", {"type": "string", "minLength": 1, "maxLength": 64}),
    "ordering_key": ("the ordering key", "order-17", {"type": "string", "minLength": 1, "maxLength": 512}),
    "timer": ("the timer's id and replication factor", "er_0123-2", {"type": "string", "minLength": 1}),
    "cron_tenant": ("the tenant of BigBen", "shop/orders", {"type": "string", "minLength": 1}),
    "cron": ("the cron's id", "nightly", {"type": "string", "minLength": 1}),
    "cron_type": ("UNIX, QUARTZ, CRON4J, SPRING or *", "QUARTZ", {"type": "string", "minLength": 1}),
    "queue": ("the queue's name", "mail", {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}),
}
_KEY = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "evk_…",
    "description": "an access key; needed as soon as the server has one",
}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "description": "the ETag of the version that is meant, or *: any",
    "schema": {"type": "string", "pattern": r'^("[1-9][0-9]{0,17}"|\*)$'},
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "makes repeating the request safe: events without an id of their own are scheduled once for it",
    "schema": {"type": "string", "pattern": KEY_PATTERN, "maxLength": KEY_LENGTH_MAX},
}
_HEADERS = {
    "location": {"description": "the path of the event", "schema": {"type": "string"}},
    "etag": {"description": "the event's version, in quotes", "schema": {"type": "string"}},
}


def openapi(routes: Sequence[Route], tags: Mapping[str, str]) -> dict[str, Any]:
    """The document. `tags` has the description of each tag."""
    schemas, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everbell",
            "version": version("everbell"),
            "description": "Hand over an event and a time, and forget about it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": tags[tag]} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": _KEY}},
    }


def _types(routes: Iterable[Route]) -> list[Any]:
    types: list[Any] = [Problem]
    for route in routes:
        types += [type_ for kind in route.responses for type_ in _alternatives(kind)]
        if route.body is not None:
            types.append(route.body)
    return [type_ for index, type_ in enumerate(types) if type_ not in types[:index]]


def _alternatives(kind: ResponseKind) -> tuple[Any, ...]:
    """The types of which the content is one. msgspec has no schema for a union of structs."""
    if isinstance(kind.content, UnionType):
        return get_args(kind.content)
    return () if kind.content is None else (kind.content,)


def _schemas(routes: Sequence[Route]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """The schema of every type that the routes name, and the components that they refer to."""
    types = _types(routes)
    # A default that is raw JSON cannot be shown, so the types are documented with another one.
    stand_ins: dict[Any, Any] = {}
    for kind in (EventSpec, ItemSpec):
        shown = msgspec.defstruct(kind.__name__, [("payload", _PAYLOAD, None)], bases=(kind,))
        stand_ins |= {kind: shown, GenericAlias(list, (kind,)): GenericAlias(list, (shown,))}
    schemas, components = msgspec.json.schema_components(
        [stand_ins.get(type_, type_) for type_ in types], ref_template=_REF
    )
    for component in components.values():
        # Python 3.13 removes the indentation of docstrings, older ones keep it: the document is the same on all.
        if "description" in component:
            component["description"] = cleandoc(component["description"])
    for name, refinement in _REFINED.items():
        components[name] |= refinement
    for name, field in _TIMES:
        schema = components[name]["properties"][field]
        (schema["anyOf"][0] if "anyOf" in schema else schema).update(_TIME)
    _refine_durations(components)
    return dict(zip(types, schemas, strict=True)), components


def _refine_durations(schema: Any) -> None:
    """Refine the schema of every duration."""
    if isinstance(schema, dict):
        choices = schema.get("anyOf", [])
        if choices[:3] == _DURATION:
            schema["anyOf"] = REFINED_DURATION + choices[3:]
        for inner in schema.values():
            _refine_durations(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _refine_durations(inner)


def _operation(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.summary,
        "description": f"{route.description} {_needed(route)}",
    }
    if route.access != "open":
        # The empty requirement: a server without keys needs none.
        operation["security"] = [{}, {"key": [] if route.access == "any" else [_scope(route)]}]
    parameters = _path_parameters(route)
    if route.conditional:
        parameters.append(_IF_MATCH)
    if route.idempotent:
        parameters.append(_IDEMPOTENCY_KEY)
    if route.query is not None:
        parameters += _query_parameters(route.query)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = _body(route, schemas[route.body])
    operation["responses"] = _responses(route, schemas)
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [segment[1:-1] for segment in route.path.split("/") if segment[:1] == "{"]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARAMETERS[name][0],
            "example": _PARAMETERS[name][1],
            "schema": _PARAMETERS[name][2],
        }
        for name in names
    ]


def _query_parameters(query: type) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([query], ref_template=_REF)
    parameters = []
    for name, schema in components[query.__name__]["properties"].items():
        shown = {"name": name, "in": "query", "schema": schema}
        if "description" in schema:
            shown["description"] = schema.pop("description")
        parameters.append(shown)
    return parameters


def _body(route: Route, schema: dict[str, Any]) -> dict[str, Any]:
    # A schema cannot describe lines of JSON; it can only say that they are text.
    content = {kind: {"schema": {"type": "string"}} for kind in route.body_types if kind != JSON}
    return {"required": route.body_required, "content": {JSON: {"schema": schema, "example": route.example}, **content}}


def _responses(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for kind in route.responses:
        responses[str(kind.status)] = _response(kind, schemas)
    problem = {"schema": schemas[Problem]}
    locked = () if route.access == "open" else PROBLEMS_OF_KEYS
    for status in sorted({*route.all_problems, *PROBLEMS_OF_ALL, *locked}):
        response = responses.setdefault(str(status), {"description": title_of(status), "content": {}})
        response["content"][CONTENT_TYPE] = problem
    return dict(sorted(responses.items()))


def _response(kind: ResponseKind, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    choices = [schemas[type_] for type_ in _alternatives(kind)] or [{"type": "string"}]
    schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
    response: dict[str, Any] = {"description": kind.description, "content": {kind.content_type: {"schema": schema}}}
    if kind.headers:
        response["headers"] = {name: _HEADERS[name] for name in kind.headers}
    return response


def _needed(route: Route) -> str:
    """The required access in words: a scope alone does not say in which tenant."""
    if route.access == "open":
        return "Needs no access key."
    if route.access == "any":
        return "Needs any access key."
    where = "the tenant" if "{tenant}" in route.path and route.access != "operator" else "all tenants"
    where = where if route.tenant is None else f"the tenant `{route.tenant}`"
    return f"Needs an access key with the scope `{_scope(route)}` for {where}."


def _scope(route: Route) -> str:
    return "admin" if route.access == "operator" else route.access
