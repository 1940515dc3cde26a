"""How a function that makes a call becomes a method of both clients, with its own name, documentation and types.

The `*_calls` modules have classes of such functions, each under `@operation`, `@walk` or `@in_parts`. `Client` and
`AsyncClient` inherit these classes, so a new operation is one function in one place. A method
returns a result where the client blocks, and a coroutine of it where the client awaits.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from inspect import Parameter
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from everbell.client.answers import EventPage, EventView
from everbell.client.call import Call
from everbell.client.queries import Choice

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")
A = TypeVar("A")
Build = Callable[Concatenate[Any, P], T]
"""Makes a call, or several, from a client and the arguments of its method."""


class Calls:
    """The functions of some operations. They know the tenant, and do no I/O."""

    tenant: str


class Blocking:
    """A client with methods that return results."""

    def run(self, call: Call[T]) -> T:
        """Make a call and return its result."""
        raise NotImplementedError


class Awaiting:
    """A client with methods that return coroutines and asynchronous iterators."""

    async def run(self, call: Call[T]) -> T:
        """Make a call and return its result."""
        raise NotImplementedError


class Method(Generic[P, B, A]):
    """A method of both clients. On a class it is the plain function, for `help()` and `inspect`."""

    def __init__(
        self,
        build: Callable[..., object],
        blocking: Callable[Concatenate[Blocking, P], B],
        awaiting: Callable[Concatenate[Awaiting, P], A],
    ) -> None:
        self.build = build
        self._blocking = blocking
        self._awaiting = awaiting

    def __set_name__(self, owner: type, name: str) -> None:
        _present(self._blocking, self.build, name)
        _present(self._awaiting, self.build, name)

    @property
    def signature(self) -> inspect.Signature:
        """The parameters, `self` included."""
        return inspect.signature(self.build)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, B]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, A]: ...
    def __get__(self, client: object, owner: type) -> Callable[..., Any]:
        method = self._awaiting if issubclass(owner, Awaiting) else self._blocking
        return method if client is None else MethodType(method, client)


def operation(build: Build[P, Call[T]]) -> Method[P, T, Coroutine[Any, Any, T]]:
    """An operation of one call."""

    def blocking(client: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.run(build(client, *args, **kwargs))

    async def awaiting(client: Awaiting, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client.run(build(client, *args, **kwargs))

    return Method(build, blocking, awaiting)


def walk(build: Build[P, Call[EventPage]]) -> Method[P, Iterator[EventView], AsyncIterator[EventView]]:
    """All events of a search, page after page."""

    def blocking(client: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[EventView]:
        rest: Call[EventPage] | None = build(client, *args, **kwargs)
        while rest is not None:
            page = client.run(rest)
            yield from page.events
            rest = page.rest

    async def awaiting(client: Awaiting, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[EventView]:
        rest: Call[EventPage] | None = build(client, *args, **kwargs)
        while rest is not None:
            page = await client.run(rest)
            for event in page.events:
                yield event
            rest = page.rest

    return Method(build, blocking, awaiting)


def in_parts(build: Build[P, Iterator[Call[T] | T]]) -> Method[P, Iterator[T], AsyncIterator[T]]:
    """An operation of several calls, with the result of each. A part that needs no call is a result already."""

    def blocking(client: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        for part in build(client, *args, **kwargs):
            yield client.run(part) if isinstance(part, Call) else part

    async def awaiting(client: Awaiting, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        for part in build(client, *args, **kwargs):
            yield await client.run(part) if isinstance(part, Call) else part

    return Method(build, blocking, awaiting)


def joined(
    build: Build[P, Iterator[Call[T] | T]], join: Callable[[Iterable[T]], T]
) -> Method[P, T, Coroutine[Any, Any, T]]:
    """An operation of several calls, with one result for all."""
    parts = in_parts(build)

    def blocking(client: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return join(list(parts.__get__(client, type(client))(*args, **kwargs)))

    async def awaiting(client: Awaiting, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return join([part async for part in parts.__get__(client, type(client))(*args, **kwargs)])

    return Method(build, blocking, awaiting)


def _present(method: Callable[..., Any], build: Callable[..., Any], name: str) -> None:
    """Give a method the documentation and the signature of `build`."""
    method.__name__ = method.__qualname__ = name
    method.__doc__ = build.__doc__
    signature = inspect.signature(build)
    # `inspect.signature` and editors look at this.
    method.__dict__["__signature__"] = signature.replace(
        parameters=list(_spelled_out(signature.parameters.values())), return_annotation=inspect.Signature.empty
    )


def _spelled_out(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """The parameters, with those of a `Choice` one by one."""
    for parameter in parameters:
        if parameter.kind is Parameter.VAR_KEYWORD:
            for name, annotation in Choice.__annotations__.items():
                yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation.__forward_arg__)
        else:
            yield parameter
