"""A time limit on a handler: it is cancelled first, and given up later.

A coroutine that ignores its cancellation, and a thread, cannot be stopped. After a grace period the attempt counts as
timed out, and the handler is left alone: it may still run, beside the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from threading import Thread
from typing import Any

from everbell.channels.handler import TimedOut

_log = logging.getLogger("everbell.worker")

GRACE_S = 5.0
"""How long a cancelled coroutine may take to clean up."""


async def limited(running: Awaitable[Any], limit_s: float, name: str) -> Any:
    """The result of a handler. Raises `TimedOut` when the handler takes longer than its limit."""
    task = asyncio.ensure_future(running)
    try:
        await asyncio.wait((task,), timeout=limit_s)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE_S)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not task.done():
        _log.warning("the task %s ignores its time limit of %g s, and is left alone", name, limit_s)
        task.add_done_callback(_ignore)
    elif not task.cancelled() and task.exception() is None:
        return task.result()  # It ended at the last moment.
    raise TimedOut(f"the task took longer than {limit_s:g} s")


def in_own_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """Call a function in a thread of its own, which does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    outcome = loop.create_future()

    def report(settle: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            settle(value)

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            # A future does not accept StopIteration.
            raised = RuntimeError("the handler raised StopIteration") if isinstance(error, StopIteration) else error
            _tell(loop, report, outcome.set_exception, raised)
        else:
            _tell(loop, report, outcome.set_result, result)

    Thread(target=run, name="everbell-task", daemon=True).start()
    return outcome


def _tell(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    try:
        loop.call_soon_threadsafe(*call)
    except RuntimeError:
        # The loop has ended before the thread.
        return


def _ignore(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
