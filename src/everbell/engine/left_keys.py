"""The keys of events that were left in the store, each with the time of its first one.

Whoever is of such a key and due no earlier has to wait behind it. A skip may last as long as a pause, so a wrong answer
would hold up an event for days that has nothing to do with it. Therefore keys are told apart by 32 bits, which is wrong
for one in a million among thousands, and known with their time, at 24 bytes each; beyond `EXACT_MAX` a filter says
"perhaps", more often wrongly.
"""

from __future__ import annotations

from array import array
from zlib import crc32

from everbell.core.keyfilter import GrowingKeyFilter

EXACT_MAX = 2_048
_SLOTS_FIRST = 16


class LeftKeys:
    """A table with open addressing, at most half full."""

    __slots__ = ("_count", "_others", "_prints", "_times")

    def __init__(self) -> None:
        self._count = 0
        self._prints = array("I", [0]) * _SLOTS_FIRST
        self._times = array("q", [0]) * _SLOTS_FIRST
        self._others: GrowingKeyFilter | None = None

    def add(self, tenant: str, key: str, run_at: int) -> None:
        """An event of the key was left that is due then."""
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
        """When the first event of the key was due that was left; 0 where that is not known, None for no such key."""
        slot = self._slot(_print(tenant, key))
        if self._prints[slot]:
            return self._times[slot]
        return 0 if self._others is not None and self._others.perhaps(tenant, key) else None

    def _slot(self, print_: int) -> int:
        """Where the key is, or would be."""
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
    """Never nothing. The hash is fixed, so that simulations do not depend on the interpreter's hash seed."""
    return crc32(f"{tenant}\0{key}".encode()) or 1
