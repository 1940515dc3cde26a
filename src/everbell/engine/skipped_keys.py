"""The keys of skipped events, each with the time of its first skipped event.

An event of such a key that is not due earlier must wait behind the skipped event. A skip may last as long as a pause,
so a false positive may delay an unrelated event for days. Therefore a key is stored as 32 bits with its time, at 24
bytes: among thousands of keys, one of a million others is mistaken for one of them. Beyond `EXACT_MAX` keys a filter
answers, which is wrong more often.
"""

from __future__ import annotations

from array import array
from zlib import crc32

from everbell.core.keyfilter import GrowingKeyFilter

EXACT_MAX = 2_048
_SLOTS_FIRST = 16


class SkippedKeys:
    """A hash table with open addressing, at most half full."""

    __slots__ = ("_count", "_others", "_prints", "_times")

    def __init__(self) -> None:
        self._count = 0
        self._prints = array("I", [0]) * _SLOTS_FIRST
        self._times = array("q", [0]) * _SLOTS_FIRST
        self._others: GrowingKeyFilter | None = None

    def add(self, tenant: str, key: str, run_at: int) -> None:
        """Add the key of a skipped event that is due at `run_at`."""
        print_ = _print(tenant, key)
        slot = self._slot(print_)
        if self._prints[slot]:
            self._times[slot] = min(self._times[slot], run_at)
        elif self._count == EXACT_MAX:
            if self._others is None:
                self._others = GrowingKeyFilter()
            self._others.add(tenant, key)
        else:
            self._prints[slot], self._times[slot] = print_, run_at
            self._count += 1
            if self._count * 2 > len(self._prints):
                self._grow()

    def first_at(self, tenant: str, key: str) -> int | None:
        """The time of the first skipped event of the key. 0: the time is not known. None: no event was skipped."""
        slot = self._slot(_print(tenant, key))
        if self._prints[slot]:
            return self._times[slot]
        return 0 if self._others is not None and self._others.perhaps(tenant, key) else None

    def _slot(self, print_: int) -> int:
        """The slot of the key, or the free slot where it would be."""
        prints = self._prints
        mask = len(prints) - 1
        slot = (print_ * 0x9E3779B1 >> 16) & mask
        while prints[slot] and prints[slot] != print_:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        prints, times = self._prints, self._times
        self._prints, self._times = array("I", [0]) * (2 * len(prints)), array("q", [0]) * (2 * len(prints))
        for print_, run_at in zip(prints, times, strict=True):
            if print_:
                slot = self._slot(print_)
                self._prints[slot], self._times[slot] = print_, run_at


def _print(tenant: str, key: str) -> int:
    """A hash that is never 0. It is fixed, so that simulations do not depend on the interpreter's hash seed."""
    return crc32(f"{tenant}\0{key}".encode()) or 1
