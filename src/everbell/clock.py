"""The only module that reads a clock.

Due times are wall-clock times. Leases use a clock that cannot be set. The event loop's timers do the waiting. The
engine uses `Clock`, so that the same code runs on virtual time.
"""

from __future__ import annotations

import time
from typing import Protocol

# Linux has a clock that continues while the machine is suspended, as leases do.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time and monotonic time."""

    def now(self) -> int:
        """Milliseconds since 1970, rounded down: if the result is `t`, the instant `t` has been reached."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some moment in the past. It continues while the machine or the process sleeps."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        return time.clock_gettime_ns(_ELAPSED) // 1_000_000


def wall_ns() -> int:
    """Nanoseconds since 1970, for measurements."""
    return time.time_ns()
