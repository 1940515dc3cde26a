"""The format in which RocksDB writes its write-ahead logs and its manifest: records in blocks of 32 KiB.

A record has a checksum, a length, a type and its data. Data that does not fit into the rest of a block is divided into
a first, middle and last record. Python computes the checksum slowly (about 10 MB a second), so only the few records
that matter are checked with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

BLOCK = 32 << 10
_HEAD = Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BEGINNINGS = (_FULL, _FIRST)
_CONTINUATIONS = (_MIDDLE, _LAST)
_BATCH = Struct("<QI")  # A write batch begins with the sequence of its first row, and the number of its rows.


class Append(NamedTuple):
    """The data of one append: one record, or a first record and those that continue it."""

    start: int
    end: int
    opening: bytes
    """The first bytes of the data, `OPENING_BYTES` at most."""
    pieces: tuple[tuple[int, int], ...]
    """Where its records begin, and how long their data is."""

    @property
    def sequence(self) -> int:
        """In a write-ahead log: the sequence of its first row."""
        return int(_BATCH.unpack_from(self.opening)[0])

    @property
    def next_sequence(self) -> int:
        """In a write-ahead log: the sequence of the first row after it."""
        return int(sum(_BATCH.unpack_from(self.opening)))


OPENING_BYTES = 64
BATCH_HEAD_BYTES = _BATCH.size


class Walk:
    """Goes from entry to entry by their lengths, without checksums, until one is broken or the content ends."""

    def __init__(self, content: bytes, place: int = 0) -> None:
        self._content = content
        self.place = place
        """The end of the last whole entry."""
        self.broken_at: int | None = None
        """At the end of the walk: where the record begins that cannot be followed; None if there is no such record."""
        self.runs_out = False
        """Whether that record ends beyond the end of the content."""

    def entries(self) -> Iterator[Append]:
        while (entry := self._entry()) is not None:
            self.place = entry.end
            yield entry

    def _entry(self) -> Append | None:
        content, at = self._content, _next_record(self.place)
        size, start, opening = len(content), at, b""
        pieces: list[tuple[int, int]] = []
        while at + _HEAD.size <= size:
            _, length, kind = _HEAD.unpack_from(content, at)
            end = at + _HEAD.size + length
            if end > at - at % BLOCK + BLOCK or kind not in (_CONTINUATIONS if pieces else _BEGINNINGS):
                self.broken_at = None if not pieces and content.count(0, at) == size - at else at
                return None
            if end > size:
                break
            pieces.append((at, length))
            if len(opening) < OPENING_BYTES:
                opening += content[at + _HEAD.size : min(end, at + _HEAD.size + OPENING_BYTES)]
            if kind in (_FULL, _LAST):
                return Append(start, end, opening, tuple(pieces))
            at = _next_record(end)
        if pieces or at < size:
            self.broken_at, self.runs_out = at, True
        return None


def is_whole(content: bytes, entry: Append) -> bool:
    """Whether all checksums of an entry are right."""
    return all(_is_right(content, place, length) for place, length in entry.pieces)


def whole_after(content: bytes, place: int) -> Iterator[Append]:
    """Whole entries from `place` on, where nothing tells where an entry begins: every place is tried."""
    while place + _HEAD.size <= len(content):
        walk = Walk(content, place)
        entry = next(walk.entries(), None) if content[place + 6] in _BEGINNINGS else None
        if entry is not None and entry.start == place and is_whole(content, entry):
            yield entry
            place = entry.end
        else:
            place += 1


def ends_with_wrong_length(content: bytes, place: int) -> bool:
    """Whether the record at `place` is whole if it ends where the file ends, so that only its length is wrong."""
    return place + _HEAD.size <= len(content) and _is_right(content, place, len(content) - place - _HEAD.size)


def _next_record(place: int) -> int:
    """Where the next record begins. The end of a block is empty if not even the head of a record fits there."""
    left = BLOCK - place % BLOCK
    return place + left if left < _HEAD.size else place


def _is_right(content: bytes, place: int, length: int) -> bool:
    sum, _, _ = _HEAD.unpack_from(content, place)
    checked = content[place + 6 : place + _HEAD.size + length]
    return bool(sum == _masked(_crc32c(checked)))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _make_table()


def _crc32c(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
