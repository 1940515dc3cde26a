"""How functions that make calls become methods of a client: with their own name, documentation and signature.

What chooses events is the same everywhere (`queries.Choice`) and shown argument by argument.

This is what keeps the two clients from being written twice: a shell says in one line that it has a method, and
everything about that method, its arguments and their types included, comes from the function that makes the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter
from typing import Any, TypeVar

from everbell.client.queries import Choice

Method = TypeVar("Method", bound=Callable[..., Any])


def presented(method: Method, build: Callable[..., Any], name: str | None = None) -> Method:
    """The method, presented as `build` is, whose first argument (the tenant) the client itself gives."""
    signature = inspect.signature(build)
    own, *others = _spelled_out(signature.parameters.values())
    method.__name__ = method.__qualname__ = name or build.__name__
    method.__doc__ = build.__doc__
    # What `inspect.signature` and editors look at.
    method.__dict__["__signature__"] = signature.replace(
        parameters=[own.replace(name="self", annotation=Parameter.empty), *others],
        return_annotation=inspect.Signature.empty,
    )
    return method


def _spelled_out(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    for parameter in parameters:
        if parameter.kind is Parameter.VAR_KEYWORD:
            for name, annotation in Choice.__annotations__.items():
                yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation.__forward_arg__)
        else:
            yield parameter
