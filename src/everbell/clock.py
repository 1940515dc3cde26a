"""The only module that reads a clock.

Due times are wall-clock times, leases are counted on a clock that nobody sets, and waiting is done by the event loop's
own timers. The engine asks through `Clock`, so that the same code runs on virtual time.
"""

from __future__ import annotations

import time
from typing import Protocol

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has one that goes on while the machine is suspended: a lease runs out then, too."""


class Clock(Protocol):
    """Wall time, and time that only passes."""

    def now(self) -> int:
        """Milliseconds since 1970, rounded down: when it says `t`, the instant `t` has been reached."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some moment in the past; it goes on while the machine or the process sleeps."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        return time.clock_gettime_ns(_ELAPSED) // 1_000_000


def wall_ns() -> int:
    """Nanoseconds since 1970, for measuring: finer than any instant of an event."""
    return time.time_ns()
