"""Background tasks that a node depends on: if one of them fails, the node halts.

Otherwise the node would keep its lease and look alive to the others, although it does not do its work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from everbell.errors import EverbellError

_log = logging.getLogger("everbell.cluster")

OnHalt = Callable[[BaseException], None]


def begin(work: Coroutine[Any, Any, None], name: str, on_halt: OnHalt) -> asyncio.Task[None]:
    """Run a task; if it ends with an exception, log that and call `on_halt`."""

    def ended(task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            # The message of an `EverbellError` says everything; others need their traceback.
            trace = None if isinstance(fault, EverbellError) else fault
            _log.critical("%s cannot go on: %s", name, fault, exc_info=trace)
            on_halt(fault)

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(ended)
    return task
