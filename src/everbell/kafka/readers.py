"""The reports of a node's readers: the counts since the last report, and the reader's health.

The gateways of a node read its topics; a node without gateways reads them itself.

- Counts are reported as increments, before the offsets behind them are committed. So if a reader dies, its unreported
  records are read again: the sums of a node only grow and are never too low.
- The health of a reader, its lag and its trouble, is forgotten with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from everbell.core.reader_report import ReaderReport


class Readers:
    """All readers of a node by number, and the sums of their reports."""

    def __init__(self) -> None:
        self.records = 0
        self.events = 0
        self.refused = 0
        self.letters_lost = 0
        self._latest: dict[int, ReaderReport] = {}
        self._are_gone = asyncio.Event()

    def add(self, number: int, report: ReaderReport) -> None:
        """Add a report. An empty one registers a new reader."""
        self.records += report.records
        self.events += report.events
        self.refused += report.refused
        self.letters_lost += report.letters_lost
        if report.is_over:
            self.forget(number)
        else:
            self._latest[number] = report
            self._are_gone.clear()

    def forget(self, number: int) -> None:
        """Remove a reader that has ended."""
        self._latest.pop(number, None)
        if not self._latest:
            self._are_gone.set()

    async def until_gone(self, timeout_s: float) -> bool:
        """Wait until there are no readers; False on a time-out."""
        if not self._latest:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._are_gone.wait()
        except TimeoutError:
            return False
        return True

    @property
    def lags(self) -> dict[str, int]:
        """Unread records by topic, of the partitions that this node reads."""
        sums: Counter[str] = Counter()
        for report in self._latest.values():
            sums.update(report.lags)
        return dict(sums)

    @property
    def trouble(self) -> str | None:
        """Why one of the readers cannot read."""
        return next((report.trouble for report in self._latest.values() if report.trouble is not None), None)
