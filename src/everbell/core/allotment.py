"""Sequences and partitions that were set aside for new events, so that whoever has them can give events their places.

Only an owner can say where an event goes; but it can say so beforehand, for thousands, and leave the rest to a gateway.
"""

from __future__ import annotations

from msgspec import Struct

RUN_BITS = 6
"""Events without a key go to one partition in runs of 64, which lie together in the store, then to the next."""


class Allotment(Struct, frozen=True, array_like=True, gc=False):
    """`count` sequences from `first` on, which nobody else gives to an event, and the partitions that are owned."""

    first: int
    count: int
    partitions: tuple[int, ...]
    row_format: str
    """The format of the rows that the store of the owner takes (`stores.row_makers`)."""

    def cut(self, count: int) -> tuple[Allotment, Allotment]:
        """The first so many, and the rest."""
        assert count <= self.count, "nobody takes more than there is"
        return (
            Allotment(self.first, count, self.partitions, self.row_format),
            Allotment(self.first + count, self.count - count, self.partitions, self.row_format),
        )

    def runs(self) -> list[tuple[int, int]]:
        """The partitions of the sequences in order, and how many go to each in a row."""
        partitions, end = self.partitions, self.first + self.count
        found = []
        sequence = self.first
        while sequence < end:
            run = sequence >> RUN_BITS
            following = min((run + 1) << RUN_BITS, end)
            found.append((partitions[run % len(partitions)], following - sequence))
            sequence = following
        return found
