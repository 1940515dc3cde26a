"""How functions that make calls become methods of a client: with their own name, documentation and signature.

This is what keeps the two clients from being written twice: a shell says in one line that it has a method, and
everything about that method, its arguments and their types included, comes from the function that makes the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def presented(method: Method, build: Callable[..., Any], name: str | None = None) -> Method:
    """The method, presented as `build` is, whose first argument (the tenant) the client itself gives."""
    signature = inspect.signature(build)
    own, *others = signature.parameters.values()
    method.__name__ = method.__qualname__ = name or build.__name__
    method.__doc__ = build.__doc__
    # What `inspect.signature` and editors look at; the types of functions do not mention it.
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[own.replace(name="self", annotation=inspect.Parameter.empty), *others],
        return_annotation=inspect.Signature.empty,
    )
    return method
