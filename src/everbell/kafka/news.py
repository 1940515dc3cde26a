"""What those who read topics tell their node: how much they have read since they told last, and how they are.

A node's topics are read by its gateways, where it has some, and else by its own process.

- Counts are told as what came to them, and before the offsets behind them are committed. So whoever dies takes no
  record along that nobody reads again: the sums of a node only grow, and are never too low.
- How a reader is, its lag and its trouble, is forgotten with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec import Struct


class KafkaNews(Struct, array_like=True, frozen=True):
    """What one reader tells."""

    records: int = 0
    events: int = 0
    refused: int = 0
    letters_lost: int = 0
    """Refused records that no letter could be written for."""
    lags: dict[str, int] = {}
    """Records that are not read yet, by topic."""
    trouble: str | None = None
    """Why nothing can be read."""
    is_over: bool = False
    """It has left the consumer group."""


class Readers:
    """All readers of a node, by number, and the sums of what they told."""

    def __init__(self) -> None:
        self.records = 0
        self.events = 0
        self.refused = 0
        self.letters_lost = 0
        self._latest: dict[int, KafkaNews] = {}
        self._are_gone = asyncio.Event()

    def hear(self, number: int, news: KafkaNews) -> None:
        """Take down what a reader tells; of one that has told nothing yet, that it is there."""
        self.records += news.records
        self.events += news.events
        self.refused += news.refused
        self.letters_lost += news.letters_lost
        if news.is_over:
            self.forget(number)
        else:
            self._latest[number] = news
            self._are_gone.clear()

    def forget(self, number: int) -> None:
        """A reader is no more, however it ended."""
        self._latest.pop(number, None)
        if not self._latest:
            self._are_gone.set()

    async def until_gone(self, timeout_s: float) -> bool:
        """Wait until nobody reads; False when somebody still does."""
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
        """Records that are not read yet, by topic, of the partitions that are read here."""
        sums: Counter[str] = Counter()
        for news in self._latest.values():
            sums.update(news.lags)
        return dict(sums)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be read, by somebody at least."""
        return next((news.trouble for news in self._latest.values() if news.trouble is not None), None)
