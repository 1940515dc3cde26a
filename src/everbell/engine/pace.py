"""The pace of a flow: how many attempts it may start in a second.

A bucket that fills up at the rate, for a tenth of a second at most, so that a receiver that was promised a rate never
gets much more than that in any second; the least that it holds is one attempt.
"""

from __future__ import annotations

from math import ceil

from everbell.core.time import DAY_MS

_BURST_S = 0.1
_WAIT_MS = 10
"""The shortest wait: a flow with a high rate starts several attempts at a time instead of waking up for each."""


class Pace:
    """Tokens, on the clock of elapsed time."""

    __slots__ = ("_burst", "_filled_ms", "_tokens", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._burst = max(1.0, rate * _BURST_S)
        self._tokens = self._burst
        self._filled_ms = 0

    def allows(self, now_ms: int) -> int:
        """How many attempts may start now."""
        self._tokens = min(self._burst, self._tokens + (now_ms - self._filled_ms) * self.rate / 1_000)
        self._filled_ms = now_ms
        return int(self._tokens + 1e-9)

    def take(self, count: int) -> None:
        """So many start."""
        self._tokens -= count

    @property
    def wait_ms(self) -> int:
        """How long it takes until another one may start, up to a day: with the least of rates it is beyond numbers."""
        return max(_WAIT_MS, ceil(min((1 - self._tokens) * 1_000 / self.rate, DAY_MS)))
