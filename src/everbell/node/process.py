"""Settings of the whole server process: garbage collection and thread switching."""

from __future__ import annotations

import gc
import sys

# Ten times as many save no more CPU, and stop the process for 40 ms at a time instead of 4.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 10_000
_SWITCH_S = 0.0005


def collect_rarely() -> None:
    """Collect garbage rarely: events have no reference cycles, and scanning them all cost a fifth of the CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 20, 50)


def switch_soon() -> None:
    """Switch threads every half millisecond, not five: a thread that returns from an fsync must run soon."""
    sys.setswitchinterval(_SWITCH_S)
