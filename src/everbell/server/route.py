"""What a route is: a method and a path, who handles it, and what goes in and comes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from msgspec import Struct

from everbell.server.message import Response

JSON = "application/json"
LINES = "application/x-ndjson"
HTML = "text/html; charset=utf-8"

Handle = Callable[..., Response | Awaitable[Response]]
"""Called with the request and the parameters of the path, in order, percent-decoded."""


Access = Literal["open", "any", "read", "schedule", "work", "admin", "operator"]
"""What a route asks for: nothing; any key that counts; a scope, in the tenant of its path, or in all tenants where its
path has none; or the key of an operator, wherever the path leads."""


class Answer(Struct, frozen=True):
    """One way in which a request can succeed, or fail with more to say than a problem."""

    status: int
    description: str
    content: tuple[Any, ...] = ()
    """The types of which the JSON is one; none where the content is text."""
    content_type: str = JSON
    headers: tuple[str, ...] = ()
    """Of `location` and `etag`, those that the answer carries."""


class Route(Struct, frozen=True):
    """One operation of the API."""

    method: str
    path: str
    """Parameters are whole segments, in braces."""
    handle: Handle
    name: str
    """Its `operationId`."""
    summary: str
    answers: tuple[Answer, ...]
    problems: tuple[int, ...] = ()
    """The statuses of its problems, beside those that every request can meet."""
    query: type | None = None
    body: Any = None
    body_types: tuple[str, ...] = (JSON,)
    body_required: bool = True
    conditional: bool = False
    """Whether it heeds `If-Match`."""
    once: bool = False
    """Whether it heeds `Idempotency-Key`."""
    access: Access | None = None
    """What it takes to use it. A route that does not say is only for operators."""
    large: bool = False
    """Whether its answer may be so large that a client is to have no more than one of them made at a time."""
    routine: bool = False
    """Whether it is what producers and workers do all day, which is too much for most audit logs."""
