"""The declaration of a route, once, beside its handler.

`@Route(...)` on a method of a `Resource` is the only place where an operation of the API is declared. The dispatch of
requests, the access check, the audit log, the OpenAPI document, `docs/http-reference.md` and the tests that walk the
routes are all derived from it. The name of the method is the `operationId`, and its docstring the description.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

from everbell.errors import EverbellError
from everbell.http.message import HttpRequest, HttpResponse
from everbell.http.problem import problem_of

JSON = "application/json"
LINES = "application/x-ndjson"
HTML = "text/html; charset=utf-8"

TENANT = "/v1/tenants/{tenant}"

Handle = Callable[..., HttpResponse | Awaitable[HttpResponse]]
"""Called with the request and the parameters of the path, in order, percent-decoded."""

MayRead = Callable[[HttpRequest, str], bool]
"""Whether the caller of a request may read events of a tenant."""

MakeRefusal = Callable[[EverbellError], HttpResponse]

H = TypeVar("H", bound=Handle)

Access = Literal["open", "any", "read", "schedule", "work", "admin", "operator"]
"""The access that a route requires: none; any valid key; a scope in the tenant of its path, or in all tenants where its
path names none; or an operator's key, whichever tenant the path names."""

_ROUTE = "__route__"


def _no_handler(*_: object) -> HttpResponse:
    raise NotImplementedError("this route was not collected by a Resource")


@dataclass(frozen=True, slots=True)
class ResponseKind:
    """One response of a route that is more than a problem document."""

    status: int
    description: str
    content: Any = None
    """The type of the JSON; None for text."""
    content_type: str = JSON
    headers: tuple[str, ...] = ()
    """The headers it carries, out of `location` and `etag`."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API. As a decorator it declares the route of a handler."""

    method: str
    path: str
    """Parameters are whole segments, in braces."""
    summary: str
    responses: tuple[ResponseKind, ...]
    _: KW_ONLY
    access: Access
    problems: tuple[int, ...] = ()
    """The statuses of its problems, beside those that follow from other fields and those that any request can meet."""
    query: type | None = None
    body: Any = None
    example: Any = None
    """A body that the route accepts."""
    body_types: tuple[str, ...] = (JSON,)
    body_required: bool = True
    conditional: bool = False
    """Whether it honours `If-Match`."""
    idempotent: bool = False
    """Whether it honours `Idempotency-Key`."""
    large: bool = False
    """Whether its response may be large. A client gets such responses one at a time."""
    shared: bool = False
    """Whether callers that accept an older answer (`Cache-Control: max-age`) share one. It is a coroutine function, and
    its answer depends on nothing but path and query."""
    routine: bool = False
    """Whether producers and workers call it all the time, which is too much for most audit logs."""
    no_client: str = ""
    """The reason why the Python clients have no call for it."""
    no_command: str = ""
    """The reason why the command line does not use it."""
    tenant: str | None = None
    """The tenant whose events it is about, where the path names none. A facade sets it, like `refuse`."""
    refuse: MakeRefusal = problem_of
    """Makes the answer to a request that its handler refuses."""
    tag: str = ""
    """Set by its `Resource`, like `handle`."""
    handle: Handle = _no_handler

    def __call__(self, handle: H) -> H:
        """Declare that `handle` is the handler of this route."""
        setattr(handle, _ROUTE, self)
        return handle

    @property
    def name(self) -> str:
        """Its `operationId`."""
        return self.handle.__name__

    @property
    def description(self) -> str:
        """The docstring of its handler."""
        return " ".join((self.handle.__doc__ or "").split())

    @property
    def all_problems(self) -> frozenset[int]:
        """The statuses of all its problems, beside those that any request can meet."""
        by_body = {413, 415, 422} if self.body is not None else set()
        by_names = {422} if self.query is not None or "{tenant}" in self.path else set()
        by_version = {412} if self.conditional else set()
        return frozenset(by_body | by_names | by_version | {*self.problems})


class Resource:
    """The handlers of one part of the API, each with its route. The docstring of the class describes its tag."""

    tag: ClassVar[str]
    declared: ClassVar[tuple[Route, ...]]
    """The routes of the class. Their handlers are functions without an instance."""

    def __init_subclass__(cls, *, tag: str) -> None:
        """Collect the routes, in the order of their handlers."""
        cls.tag = tag
        members = [member for member in vars(cls).values() if hasattr(member, _ROUTE)]
        cls.declared = tuple(replace(getattr(member, _ROUTE), tag=tag, handle=member) for member in members)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The routes with the handlers of this instance."""
        return tuple(replace(route, handle=getattr(self, route.name)) for route in self.declared)
