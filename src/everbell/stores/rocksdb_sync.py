"""Making the log durable: on the loop while the disk is quick, in a thread while it is not.

A thread lets everything else go on during an fsync, but handing over to it and back makes two threads take the
interpreter from each other: about a millisecond of CPU time for each group, which is more than a quick disk needs for
the fsync itself. So the time that fsyncs take is watched. One that is slow sends the following ones to the thread at
once; they come back when a few dozen have been quick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from sys import getswitchinterval
from time import perf_counter

QUICK_S = 0.0015
"""The loop waits for an fsync that is expected to take no longer than this."""
_MEMORY = 16


class Syncer:
    """Calls what syncs, one at a time, and knows how long that takes."""

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self.thread = ThreadPoolExecutor(1, "everbell-fsync")
        self.expected_s = 2 * QUICK_S
        """Slow until it has shown that it is quick."""
        self._timer = timer

    async def sync(self, flush: Callable[[], object]) -> None:
        """Raises what `flush` raises."""
        if self.expected_s <= QUICK_S:
            took_s = self._timed(flush)
        else:
            took_s = await asyncio.get_running_loop().run_in_executor(self.thread, self._timed, flush)
            # A thread that comes back from the kernel waits about this long for the interpreter.
            took_s = max(took_s - getswitchinterval(), 0.0)
        surplus_s = took_s - self.expected_s
        self.expected_s += surplus_s / (2 if surplus_s > 0 else _MEMORY)

    def _timed(self, flush: Callable[[], object]) -> float:
        start_s = self._timer()
        flush()
        return self._timer() - start_s
