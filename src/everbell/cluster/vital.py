"""Work that a node cannot do without: if it ends by a fault, the node halts.

Otherwise the node would keep its lease and look alive to the others, while nothing of what it has to do is done.
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
    """Do this until it ends by itself or is cancelled; `on_halt` is told of anything else."""

    def ended(task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            # What has a class of ours says everything in its message.
            trace = None if isinstance(fault, EverbellError) else fault
            _log.critical("%s cannot go on: %s", name, fault, exc_info=trace)
            on_halt(fault)

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(ended)
    return task
