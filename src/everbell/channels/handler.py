"""In-process delivery: `handler:name` calls a Python function with an `Occurrence`.

Coroutine functions run on the loop; plain functions run in a small pool of threads, because they may block.
Returning is success. Raising is a failure that is retried, even `sys.exit`. Raising `Refuse` is a permanent refusal.

A runner is a task that handles one event after the other. A new runner starts only if the current one may have to
wait, so a handler that never waits costs no task per event. One timer enforces the deadlines of all runners.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from os.path import basename, dirname
from traceback import walk_tb

from everbell.channels.port import Delivery
from everbell.core.occurrence import Occurrence, occurrence_of
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.time import Duration, parse_duration

HandlerFunction = Callable[[Occurrence], Awaitable[object] | object]

REASON_LENGTH_MAX = 500

_THREADS = 16
_FRAMES = 3
_PACKAGE = dirname(dirname(__file__))
_SWEEP_S = 0.1


class TimedOut(Exception):
    """A task took longer than its time limit."""


class Refuse(Exception):
    """Raised by a handler that refuses the event for good: it becomes dead without another attempt."""


class Retry(Exception):
    """Raised by a handler that wants another attempt: `raise Retry(after="5m", reason="the bank is closed")`.

    The next attempt starts `after` that time, or later if the pause of the retry policy is longer. It counts as an
    attempt: after the last one, the event is dead.
    """

    def __init__(
        self, reason: str = "the handler asked for another attempt", *, after: timedelta | Duration = 0
    ) -> None:
        super().__init__(reason)
        self.after_ms = parse_duration(after.total_seconds() if isinstance(after, timedelta) else after, "after")


def failure_of(error: BaseException) -> Outcome:
    """The outcome of an attempt whose handler raised."""
    if isinstance(error, Retry):
        return Outcome("failed", reason_of(error), retry_after_ms=error.after_ms)
    if isinstance(error, TimedOut):
        return Outcome("timeout", reason_of(error))
    return Outcome("refused" if isinstance(error, Refuse) else "failed", reason_of(error))


def reason_of(error: BaseException) -> str:
    """The reason of a handler's failure as text that can be stored and sent, whatever was raised.

    It ends with the lines of the handler where the error was raised, as far as there is room for them.
    """
    try:
        text = str(error)
    except Exception as failure:
        text = f"its text cannot be told, {type(failure).__name__} was raised instead"
    if isinstance(error, Refuse):
        reason = text or "the handler refused it"
    elif isinstance(error, Retry | TimedOut):
        reason = text
    else:
        reason = f"{type(error).__name__}: {text}" + _end_of_traceback(error)
    # The text may contain surrogates that cannot be encoded, such as from a file name that is not UTF-8. It is cut
    # before the encoding, because it may be huge, and afterwards, because escapes make it longer.
    return reason[:REASON_LENGTH_MAX].encode(errors="backslashreplace").decode()[:REASON_LENGTH_MAX]


def _end_of_traceback(error: BaseException) -> str:
    """The last lines of the handler's own code, the innermost last: ` [mail.py:12 in send, smtp.py:7 in connect]`."""
    frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    # A plain function runs below `call_in_thread`: the frames before that are those of the thread.
    last = max((at for at, (code, _) in enumerate(frames) if code is call_in_thread.__code__), default=-1)
    own = [(code, line) for code, line in frames[last + 1 :] if not code.co_filename.startswith(_PACKAGE)][-_FRAMES:]
    places = ", ".join(f"{basename(code.co_filename)}:{line} in {code.co_name}" for code, line in own)
    return f" [{places}]" if places else ""


def call_in_thread(handler: HandlerFunction, occurrence: Occurrence) -> object:
    """Call a handler that is a plain function, in a thread."""
    try:
        return handler(occurrence)
    except StopIteration as error:
        # A future of asyncio does not accept StopIteration, so its waiter would wait for ever.
        raise RuntimeError("the handler raised StopIteration") from error


class HandlerChannel:
    """Calls handlers by name."""

    holds = False
    together = 1

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[Occurrence], Awaitable[object]]] = {}  # Handlers by target.
        self._queue: deque[Delivery] = deque()
        self._handled: list[Delivery] = []
        self._starting = False
        self._deadlines: dict[asyncio.Task[None], float] = {}
        self._overdue: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._threads: ThreadPoolExecutor | None = None

    def register(self, name: str, handler: HandlerFunction) -> None:
        """Deliver `handler:name` to this function from now on."""
        called = handler if inspect.iscoroutinefunction(handler) else self._in_thread(handler)
        self._handlers[f"handler:{name}"] = called

    def lacks(self, target: str) -> bool:
        """Whether the target is a handler that is not registered."""
        return target.startswith("handler:") and target not in self._handlers

    def start(self, deliveries: Sequence[Delivery]) -> None:
        self._queue.extend(deliveries[0].desk.begin_all(deliveries))
        self._run_soon()

    async def close(self) -> None:
        """Drop the deliveries in flight without settling them.

        The handlers stay registered, and the channel may be used again, even in another loop.
        """
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._queue.clear()
        runners = list(self._deadlines)
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)
        self._report()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        # Only now, because an ending runner would set a new timer. Runners that were cancelled before their first step
        # did not clean up after themselves.
        self._sweeper = self._threads = None
        self._starting = False
        self._deadlines.clear()
        self._overdue.clear()

    def _run_soon(self) -> None:
        """Start a runner for the head of the queue, unless one is starting."""
        if self._queue and not self._starting:
            self._starting = True
            runner = asyncio.get_running_loop().create_task(self._run())
            self._deadlines[runner] = float("inf")

    async def _run(self) -> None:
        self._starting = False
        runner = asyncio.current_task()
        assert runner is not None
        now = asyncio.get_running_loop().time
        try:
            while self._queue:
                delivery = self._queue.popleft()
                self._deadlines[runner] = now() + delivery.tenant.timeout_ms / 1_000
                if self._queue and not self._starting:
                    self._run_soon()
                if self._sweeper is None:
                    self._sweep_soon()
                event, failure = delivery.event, None
                handler = self._handlers.get(event.to)
                # Inline rather than a coroutine of its own, which would cost 2% of the whole path of an event.
                try:
                    if handler is None:
                        failure = _no_handler(event.to)
                    else:
                        attempts_max = (event.retry or delivery.tenant.retry).max_attempts
                        await handler(occurrence_of(event, delivery.attempt, delivery.epoch, attempts_max))
                except asyncio.CancelledError:
                    failure = self._cancelled(delivery, runner)
                except BaseException as error:
                    failure = _failed(error)
                if runner in self._overdue:
                    # The cancellation was for the deadline alone: the runner goes on with the next event.
                    self._overdue.discard(runner)
                    runner.uncancel()
                if failure is None:
                    self._done(delivery)
                else:
                    delivery.settle(failure)
                if not self._queue:
                    self._report()  # The report may bring the next deliveries at once.
        finally:
            del self._deadlines[runner]

    def _done(self, delivery: Delivery) -> None:
        """Report a handled delivery together with all others of this loop iteration."""
        if not self._handled:
            asyncio.get_running_loop().call_soon(self._report)
        self._handled.append(delivery)

    def _report(self) -> None:
        handled, self._handled = self._handled, []
        if handled:
            handled[0].desk.settle_all(handled, DELIVERED)

    def _cancelled(self, delivery: Delivery, runner: asyncio.Task[None]) -> Outcome:
        """The outcome of a cancelled handler. Re-raises if the channel is being closed."""
        if runner in self._overdue:
            return Outcome("timeout", f"the handler took longer than {delivery.tenant.timeout_ms} ms")
        if runner.cancelling():
            raise asyncio.CancelledError
        return Outcome("failed", "CancelledError: something that the handler waited for was cancelled")

    def _in_thread(self, handler: HandlerFunction) -> Callable[[Occurrence], Awaitable[object]]:
        async def call(occurrence: Occurrence) -> object:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, "everbell-handler")
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, call_in_thread, handler, occurrence)
            return await result if inspect.isawaitable(result) else result

        return call

    def _sweep_soon(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Cancel the handlers that have exceeded their deadlines."""
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for runner, deadline in self._deadlines.items():
            if deadline < now and runner not in self._overdue:
                self._overdue.add(runner)
                runner.cancel()
        if self._deadlines:
            self._sweep_soon()


def _no_handler(target: str) -> Outcome:
    name = target.partition(":")[2]
    return Outcome("failed", f"there is no handler named {name!r} in this process")


def _failed(error: BaseException) -> Outcome:
    """The outcome of a handler that raised. Re-raises exceptions that end the program or the runner."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error
    return failure_of(error)
