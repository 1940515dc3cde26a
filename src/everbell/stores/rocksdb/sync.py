"""Fsync of the log: on the loop while the disk is fast, in a thread while it is slow.

Other tasks go on during an fsync in a thread. But the two threads then compete for the interpreter, which costs up to a
millisecond of CPU time for each group, more than the fsync itself on a fast disk. So the loop waits for fast fsyncs.
When they become slow, the thread does a number of them, and then the loop tries again. (Times measured in the thread
are useless: on a busy machine they mostly contain the wait for the interpreter.) Each failed try doubles that number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

QUICK_S = 0.0015  # The loop waits for fsyncs that take no longer than this on average.
TURNS_MIN = 16
TURNS_MAX = 1_024  # How many fsyncs the thread does before the loop tries again.
_MEMORY = 16


class Syncer:
    """Runs one fsync at a time, on the loop or in its thread."""

    def __init__(self, timer: Callable[[], float] = perf_counter) -> None:
        self.thread = ThreadPoolExecutor(1, "everbell-fsync")
        self._timer = timer
        self._expected_s = 0.0
        self._turns = TURNS_MIN
        self._turns_left = 0

    async def sync(self, flush: Callable[[], object]) -> None:
        """Call `flush`, and raise its errors."""
        if self._turns_left:
            self._turns_left -= 1
            await asyncio.get_running_loop().run_in_executor(self.thread, flush)
            return
        start_s = self._timer()
        flush()
        self._judge(self._timer() - start_s)

    def _judge(self, took_s: float) -> None:
        """Learn from a duration. One slow fsync among many fast ones hardly counts, unless it is very slow."""
        surplus_s = took_s - self._expected_s
        self._expected_s += surplus_s / (3 if surplus_s > 0 else _MEMORY)
        if self._expected_s <= QUICK_S:
            self._turns = max(self._turns * 15 // 16, TURNS_MIN)
        else:
            self._expected_s = QUICK_S
            self._turns_left = self._turns
            self._turns = min(self._turns * 2, TURNS_MAX)
