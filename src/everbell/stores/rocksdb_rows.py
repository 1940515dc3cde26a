"""Rows of RocksDB that are neither events nor records: counts and numbers."""

from __future__ import annotations

from struct import Struct

from everbell.stores.port import Counts
from everbell.stores.rows import Tally

_COUNTS = Struct(">5q")
_NUMBER = Struct(">Q")
NUMBER_BYTES = _NUMBER.size


def counts_row(tally: Tally) -> bytes:
    """The row of a tenant's counts."""
    return _COUNTS.pack(*tally)


def read_tally(row: bytes) -> Tally:
    """The counts of a tenant, ready to change."""
    return list(_COUNTS.unpack(row))


def counts_of(tally: Tally) -> Counts:
    """The counts of a tenant, for others to see."""
    return Counts(*tally)


def number_row(number: int) -> bytes:
    """A row that is a number."""
    return _NUMBER.pack(number)


def read_number(row: bytes) -> int:
    """The number in a row."""
    number: int = _NUMBER.unpack(row)[0]
    return number


def numbers_row(numbers: list[int]) -> bytes:
    """A row of numbers."""
    return b"".join(map(_NUMBER.pack, numbers))


def read_numbers(row: bytes) -> list[int]:
    """The numbers in a row."""
    return [number for (number,) in _NUMBER.iter_unpack(row)]
