"""Making the log durable: on the loop while the disk is quick, in a thread while it is not.

A thread lets everything else go on during an fsync, but handing over to it and back makes two threads take the
interpreter from each other: up to a millisecond of CPU time for each group, which is more than a quick disk needs for
the fsync itself. So the loop waits for fsyncs as long as they are quick. When they are not, the thread does some, and
then the loop tries again: it cannot learn from the thread's times, in which the wait for the interpreter is the larger
part on a busy machine. Each try that fails doubles how many the thread does, so a slow disk is hardly ever waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

QUICK_S = 0.0015
"""The loop waits for fsyncs that take no longer than this, on the whole."""
TURNS_MIN = 16
TURNS_MAX = 1_024
"""How many fsyncs the thread does before the loop tries again."""
_MEMORY = 16


class Syncer:
    """Calls what syncs, one at a time, where it is best done."""

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self.thread = ThreadPoolExecutor(1, "everbell-fsync")
        self._timer = timer
        self._expected_s = 0.0
        self._turns = TURNS_MIN
        self._turns_left = 0

    async def sync(self, flush: Callable[[], object]) -> None:
        """Raises what `flush` raises."""
        if self._turns_left:
            self._turns_left -= 1
            await asyncio.get_running_loop().run_in_executor(self.thread, flush)
            return
        start_s = self._timer()
        flush()
        self._judge(self._timer() - start_s)

    def _judge(self, took_s: float) -> None:
        """One slow fsync among many quick ones means little, unless it is very slow."""
        surplus_s = took_s - self._expected_s
        self._expected_s += surplus_s / (3 if surplus_s > 0 else _MEMORY)
        if self._expected_s <= QUICK_S:
            self._turns = max(self._turns * 15 // 16, TURNS_MIN)
        else:
            self._expected_s = QUICK_S
            self._turns_left = self._turns
            self._turns = min(self._turns * 2, TURNS_MAX)
