"""The rate limit of a flow: the number of attempts that it may start in a second.

The bucket holds the tokens of a tenth of a second, and at least one token. So a receiver never gets many more attempts
in any second than the rate allows.
"""

from __future__ import annotations

from math import ceil

from everbell.core.time import DAY_MS

_BURST_S = 0.1
# The shortest wait: a flow with a high rate starts several attempts at a time instead of waking up for each.
_WAIT_MS = 10


class TokenBucket:
    """Tokens for attempts, filled on the clock of elapsed time."""

    __slots__ = ("_burst", "_filled_ms", "_tokens", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._burst = max(1.0, rate * _BURST_S)
        self._tokens = self._burst
        self._filled_ms = 0

    def allows(self, now_ms: int) -> int:
        """The number of attempts that may start now."""
        self._tokens = min(self._burst, self._tokens + (now_ms - self._filled_ms) * self.rate / 1_000)
        self._filled_ms = now_ms
        return int(self._tokens + 1e-9)

    def take(self, count: int) -> None:
        """Use up tokens, because attempts start."""
        self._tokens -= count

    @property
    def wait_ms(self) -> int:
        """The time until the next attempt may start, at most a day: a tiny rate would make it too large for a timer."""
        return max(_WAIT_MS, ceil(min((1 - self._tokens) * 1_000 / self.rate, DAY_MS)))
