"""Processes on one virtual loop: each has its own clocks, can be stopped for a while, and can die between two steps.

Every callback belongs to the process in whose context it was scheduled. Callbacks of a paused process are held back
until it continues, as with SIGSTOP; those of a dead process never run. So a crash can come at any await, and needs no
clean-up. Code outside all processes (the network, the servers, the clients) runs on true time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from everbell.testing.virtual import START_AT, Deadlock, VirtualLoop

T = TypeVar("T")

_STEPS_MS = 300
_CLOCK_OFF_MS = 2_300
_HAIR_S = 1e-6


def clock_off_ms(skew_ms: int) -> int:
    """The maximum error of a wall clock that began with an error of up to `skew_ms`, and is set now and then."""
    return max(_CLOCK_OFF_MS, abs(skew_ms) + _STEPS_MS)


class Process:
    """One simulated process."""

    def __init__(self, loop: ProcessLoop, name: str, rate: float, skew_ms: int) -> None:
        self.name = name
        self.rate = rate
        """How many seconds of its timers and of its monotonic clock pass in one true second."""
        self.skew_ms = skew_ms
        """How far its wall clock is ahead of the true time."""
        self._off_ms = clock_off_ms(skew_ms)
        self.set_back_ms = 0
        """How far its wall clock is behind an earlier reading of itself: an event that was due stays due."""
        self.dead = False
        self.paused = False
        self.fuse = -1
        """The process dies after this number of steps; never, if below zero."""
        self.on_death: Callable[[], None] = lambda: None
        self.context = Context()
        self.context.run(_PROCESS.set, self)
        self._loop = loop
        self._held: list[_Step] = []
        self._pauses = 0

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        return self._loop.create_task(work, context=self.context.copy())

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function in this process, soon."""
        self._loop.call_soon(callback, *args, context=self.context)

    def step(self, milliseconds: int) -> None:
        """Set its wall clock, within the maximum error."""
        milliseconds = max(-self._off_ms, min(self._off_ms, self.skew_ms + milliseconds)) - self.skew_ms
        self.skew_ms += milliseconds
        self.set_back_ms = max(self.set_back_ms - milliseconds, 0)

    def die(self) -> None:
        """Run no callback of this process any more."""
        if not self.dead:
            self.dead = True
            self._held.clear()
            self.on_death()

    def pause(self, seconds: float) -> None:
        """Hold all callbacks back for a while."""
        self.paused = True
        self._pauses += 1
        self._loop.after(seconds, self._resume, self._pauses)

    def resume(self) -> None:
        """Run the callbacks that were held back, late."""
        self._resume(self._pauses)

    def _resume(self, pause: int) -> None:
        if self.paused and pause == self._pauses:
            self.paused = False
            held, self._held = self._held, []
            for step in held:
                self._loop.run_again(step)

    def may_run(self, step: _Step) -> bool:
        """Whether a callback may run now; if not, it is kept for later, or dropped."""
        if self.dead:
            return False
        if self.paused:
            self._held.append(step)
            return False
        if self.fuse >= 0:
            self.fuse -= 1
            if self.fuse < 0:
                self.die()
                return False
        return True


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Step:
    """A callback and its process. The code that scheduled it uses it as a handle."""

    __slots__ = ("args", "callback", "context", "is_off", "loop", "process", "when_s")

    def __init__(
        self,
        process: Process | None,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: Context,
    ) -> None:
        self.process = process
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.loop = loop
        self.context = context
        self.is_off = False

    def cancel(self) -> None:
        if not self.is_off:
            self.is_off = True
            self.args = ()
            self.loop.timers_off += 1

    def cancelled(self) -> bool:
        return self.is_off

    def when(self) -> float:
        return self.when_s


class ProcessLoop(VirtualLoop):
    """A virtual loop that knows the process of each callback.

    It does the same as asyncio's own loop, in the same order, without the parts that only real time and real sockets
    need: a simulation spends most of its time here. Timers of one instant run in the order in which they were set.
    """

    _ready: deque[_Step]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.outside = Context()
        self.tasks: dict[asyncio.Task[Any], Process | None] = {}
        """The tasks that have not succeeded yet, and their processes. They are kept, so that no garbage is collected,
        and no coroutine closed, during a run.
        """
        self._timers: list[tuple[float, int, _Step]] = []
        self._timers_set = 0
        self.timers_off = 0
        """An upper bound of the cancelled timers: those that were already due are counted, too."""
        self.set_task_factory(_make_task)

    @property
    def true_s(self) -> float:
        """The true time, which no clock shows."""
        return self._now_s

    def time(self) -> float:
        process = _PROCESS.get()
        return self._now_s if process is None else self._now_s * process.rate

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call a function outside of all processes, after some true time."""
        self._set_timer(_Step(None, self._now_s + seconds, callback, args, self, self.outside))

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        if context is None:
            context = copy_context()
        step = _Step(context.get(_PROCESS), 0.0, callback, args, self, context)
        self._ready.append(step)
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        if context is None:
            context = copy_context()
        process = context.get(_PROCESS)
        if process is not None:
            # A hair later: a timer counts as due a hair before its time, and a callback that reads the clock then would
            # wait again.
            when = when / process.rate + 2 * _HAIR_S
        step = _Step(process, when, callback, args, self, context)
        self._set_timer(step)
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_again(self, step: _Step) -> None:
        """Run a callback again that was held back."""
        self._ready.append(step)

    def _set_timer(self, step: _Step) -> None:
        self._timers_set += 1
        heappush(self._timers, (step.when_s, self._timers_set, step))

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        if self.timers_off > 100 and self.timers_off * 2 > len(timers):
            timers[:] = [timer for timer in timers if not timer[2].is_off]
            heapify(timers)
            self.timers_off = 0
        while timers and timers[0][2].is_off:
            heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise Deadlock("all tasks wait, and no callback is left that could wake one")
            self._now_s = max(self._now_s, timers[0][0])
        due_s = self._now_s + _HAIR_S
        while timers and timers[0][0] < due_s:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            step = ready.popleft()
            if not step.is_off and (step.process is None or step.process.may_run(step)):
                try:
                    step.context.run(step.callback, *step.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as failed:
                    self.call_exception_handler({"message": f"{step.callback} failed", "exception": failed})

    def unseen(self) -> list[BaseException]:
        """The errors that no caller has retrieved, although one could have."""
        return [
            error
            for task, process in self.tasks.items()
            if _is_unseen(task) and (error := task._exception) is not None and (process is None or not process.dead)
        ]

    def bury(self) -> None:
        """After the run: close all tasks."""
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                with suppress(BaseException):  # Errors of a dead process do not matter.
                    task.get_coro().close()
            elif not task.cancelled():
                task.exception()
        self.tasks.clear()


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, ProcessLoop)
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context: Context | None = options.get("context")
    loop.tasks[task] = _PROCESS.get() if context is None else context.get(_PROCESS)
    task.add_done_callback(_forget, context=loop.outside)
    return task


def _forget(task: asyncio.Task[Any]) -> None:
    if task.cancelled() or task._exception is None:
        loop = task.get_loop()
        assert isinstance(loop, ProcessLoop)
        loop.tasks.pop(task, None)


def _is_unseen(task: asyncio.Task[Any]) -> bool:
    return task.done() and bool(task._log_traceback)


class ProcessClock:
    """The clocks of a process: a wall clock that is wrong by some seconds, and a monotonic clock that runs fast or
    slow.
    """

    def __init__(self, loop: ProcessLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def now(self) -> int:
        return START_AT + self._process.skew_ms + int((self._loop.true_s + _HAIR_S) * 1_000)

    def elapsed_ms(self) -> int:
        return int((self._loop.true_s + _HAIR_S) * self._process.rate * 1_000)


def finished(work: Awaitable[T]) -> T:
    """The result of a coroutine that never has to wait."""
    step = work.__await__()
    try:
        next(step)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it had to wait")
