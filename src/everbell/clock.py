"""The only module that reads a clock.

Due times are wall-clock times; waiting is done by the event loop's own timers. The engine asks for both through
`Clock`, so that the same code runs on virtual time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time."""

    def now(self) -> int:
        """Milliseconds since 1970, rounded down: when it says `t`, the instant `t` has been reached."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000


def wall_ns() -> int:
    """Nanoseconds since 1970, for measuring: finer than any instant of an event."""
    return time.time_ns()
