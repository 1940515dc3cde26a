"""Functions that a program wants called around its handlers, for tracing and error reports such as those of Sentry."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from everbell.channels.handler import HandlerFunction
from everbell.client.time_limit import in_own_thread
from everbell.core.occurrence import Occurrence

_log = logging.getLogger("everbell.worker")

Before = TypeVar("Before", bound=Callable[[Occurrence], object])
OnError = TypeVar("OnError", bound=Callable[[Occurrence, BaseException], object])


class Hooks:
    """Functions, plain or async, that run before and after every task, and when one fails.

    An exception in a hook is logged, and does not change the outcome of the attempt.
    """

    def __init__(self) -> None:
        self._before: list[Callable[..., object]] = []
        self._after: list[Callable[..., object]] = []
        self._on_failure: list[Callable[..., object]] = []

    def before(self, hook: Before) -> Before:
        """Call the decorated function with the `Occurrence` before each attempt."""
        self._before.append(hook)
        return hook

    def after(self, hook: Before) -> Before:
        """Call the decorated function with the `Occurrence` after each attempt that succeeded."""
        self._after.append(hook)
        return hook

    def on_failure(self, hook: OnError) -> OnError:
        """Call the decorated function with the `Occurrence` and the exception after each attempt that failed."""
        self._on_failure.append(hook)
        return hook

    def __bool__(self) -> bool:
        return bool(self._before or self._after or self._on_failure)

    def wrapped(self, handler: HandlerFunction) -> HandlerFunction:
        """The handler between the hooks. The hooks run on the loop; a plain handler still gets a thread."""
        is_async = inspect.iscoroutinefunction(handler)

        async def call(occurrence: Occurrence) -> object:
            run = partial(handler, occurrence)
            return await self.around(occurrence, run if is_async else partial(in_own_thread, run))

        return call

    async def around(self, occurrence: Occurrence, run: Callable[[], Any]) -> Any:
        """Run an attempt between the hooks."""
        await _call(self._before, occurrence)
        try:
            result = run()
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            await _call(self._on_failure, occurrence, error)
            raise
        await _call(self._after, occurrence)
        return result


async def _call(hooks: Sequence[Callable[..., object]], *arguments: object) -> None:
    for hook in hooks:
        try:
            result = hook(*arguments)
            if inspect.isawaitable(result):
                await result
        except Exception:
            _log.exception("the hook %s failed", getattr(hook, "__name__", hook))
