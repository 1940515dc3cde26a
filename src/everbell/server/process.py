"""What a server process sets for itself as a whole."""

from __future__ import annotations

import gc
import sys

_ALLOCATIONS_BETWEEN_COLLECTIONS = 10_000
"""Ten times as many save nothing more, and hold everything up for 40 ms at a time instead of 4."""
_SWITCH_S = 0.0005


def collect_rarely() -> None:
    """Look for reference cycles seldom: events are trees, and looking at them all again and again cost a fifth of
    the CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 20, 50)


def switch_soon() -> None:
    """Let the thread that comes back from an fsync have the interpreter within half a millisecond, not five."""
    sys.setswitchinterval(_SWITCH_S)
