"""Requests as values, and the one verb that answers them: `ask`.

A request is a frozen value that knows the type of its answer. `Handlers` answers requests by their class. It refuses to
be made while a class lacks a handler, so a forgotten operation fails every test that starts an engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, get_args

from msgspec import Struct

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Request(Struct, Generic[A_co], frozen=True, array_like=True):
    """Something to ask for; `A_co` is the type of the answer."""

    tag: ClassVar[str] = ""
    """The name on the wire. A class without one is no request, but the base of some."""
    for_peers: ClassVar[bool] = False
    """Whether another node may ask it."""

    @classmethod
    def by(cls, handle: Callable[[Self], Awaitable[A_co]]) -> Handler:
        """Let a function answer these requests. mypy checks that it takes such a request and returns its answer."""
        return Handler(cls, handle)


class Handler(Struct, frozen=True):
    """A function, and the requests that it answers. Only `Request.by` makes one, so that the two fit."""

    kind: type[Request[Any]]
    handle: Callable[[Any], Awaitable[Any]]


class Ask(Protocol):
    """Answers requests. Any of them may raise `Stopping` and `Overloaded`, and what its docstring names."""

    def __call__(self, request: Request[A], /) -> Awaitable[A]: ...


class Handlers:
    """Answers requests, each by the handler of its class, or of the nearest base that has one."""

    def __init__(
        self, *handlers: Handler, complete: type[Request[Any]] | None = None, otherwise: Ask | None = None
    ) -> None:
        """All requests of `complete` need a handler; `otherwise` answers those of other classes."""
        given = {handler.kind: handler.handle for handler in handlers}
        assert len(given) == len(handlers), "two handlers answer the same request"
        self._handles: dict[type, Callable[[Any], Awaitable[Any]]] = {
            kind: next(given[base] for base in kind.__mro__ if base in given)
            for kind in requests_of(Request)
            if not given.keys().isdisjoint(kind.__mro__)
        }
        needed = () if complete is None else requests_of(complete)
        missing = [kind.__name__ for kind in needed if kind not in self._handles]
        assert not missing, f"no handler answers {', '.join(missing)}"
        self._otherwise = otherwise

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        """Answer a request."""
        handle = self._handles.get(type(request))
        if handle is not None:
            return handle(request)
        assert self._otherwise is not None, f"{type(request).__name__} is not for this part of the node"
        return self._otherwise(request)


def requests_of(base: type[Request[Any]]) -> Iterator[type[Request[Any]]]:
    """The requests that derive from a class, itself included."""
    if base.tag:
        yield base
    for kind in base.__subclasses__():
        yield from requests_of(kind)


def answer_type(kind: type[Request[Any]]) -> Any:
    """What answers a request, as it was declared: `Seen` for `class Cancel(ByEventId[Seen])`."""
    for base in kind.__mro__:
        for declared in base.__dict__.get("__orig_bases__", ()):
            for given in get_args(declared):
                if not isinstance(given, TypeVar):
                    return given
    raise AssertionError(f"{kind.__name__} declares no answer")
