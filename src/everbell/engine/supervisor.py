"""Supervision: an unexpected exception never stops a part of the engine silently.

Expected failures are values, or `EverbellError`s that their callers handle. Any other exception is a bug, in the engine
or in a port that was passed to it. There are two answers:

- The exception concerns one event: its channel cannot start it, or its outcome cannot be judged. That event fails, and
  the exception is its recorded reason. A restart would meet the same event again, so the engine must not end.
- Otherwise the state in memory may be half changed. The engine ends: it starts and stores nothing more, every waiting
  caller gets an answer, and the process exits. The next start recovers everything acknowledged from the store.

Therefore all timers of the engine are made here, channels call the engine through guarded methods, and callers wait for
answers here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple

from everbell.errors import OutcomeUnknown, Stopping

A = TypeVar("A")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Supervisor:
    """Runs the callbacks of an engine, and ends the engine when one of them fails."""

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self.fault: BaseException | None = None
        """The exception that ended the engine."""
        self._on_fault = on_fault
        # The tasks that wait for an answer, and those of them that were cancelled because the engine ended.
        self._waiting: set[asyncio.Task[Any]] = set()
        self._failed: set[asyncio.Task[Any]] = set()

    def call_soon(self, callback: Callable[[*Ts], object], *arguments: *Ts) -> asyncio.Handle:
        """Call back in the next turn of the loop."""
        return asyncio.get_running_loop().call_soon(self._run, callback, *arguments)

    def call_later(self, seconds: float, callback: Callable[[*Ts], object], *arguments: *Ts) -> asyncio.TimerHandle:
        """Call back after this time."""
        return asyncio.get_running_loop().call_later(seconds, self._run, callback, *arguments)

    @contextmanager
    def critical(self, expected: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """End the engine if an exception that is not expected leaves this block: the state may be half changed."""
        try:
            yield
        except expected:
            raise
        except Exception as fault:
            self.end(fault)
            raise

    def end(self, fault: BaseException) -> None:
        """End the engine. Only the first fault counts."""
        if self.fault is None:
            self.fault = fault
            self._on_fault(fault)
            # Not now: the running task may be one of the callers, and a running task cannot be woken.
            asyncio.get_running_loop().call_soon(self._fail_callers)

    async def answer(self, ask: Callable[[R], Awaitable[A]], request: R) -> A:
        """Ask, and return the answer. Raises `OutcomeUnknown` if the engine ends first, and `Stopping` if it ended."""
        if self.fault is not None:
            raise Stopping("the engine has ended because of a fault; nothing of this request was done")
        task = asyncio.current_task()
        assert task is not None, "only tasks await"
        is_outermost = task not in self._waiting  # A request about many events asks for each of them.
        self._waiting.add(task)
        try:
            return await ask(request)
        except asyncio.CancelledError:
            if is_outermost and task in self._failed:
                self._failed.discard(task)
                if task.uncancel() == 0:
                    advice = "with an id of your own, ask again"
                    raise OutcomeUnknown(f"the engine failed before it answered; {advice}") from None
            raise
        finally:
            if is_outermost:
                self._waiting.discard(task)

    def _run(self, callback: Callable[[*Ts], object], *arguments: *Ts) -> None:
        if self.fault is not None:
            return
        try:
            callback(*arguments)
        except Exception as fault:
            self.end(fault)

    def _fail_callers(self) -> None:
        self._failed.update(self._waiting)
        for task in self._waiting:
            task.cancel()
