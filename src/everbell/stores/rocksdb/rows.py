"""Rows of RocksDB that are neither events nor records: counts and numbers."""

from __future__ import annotations

from struct import Struct

from everbell.stores.rows import StatusCounts

_COUNTS = Struct(">5q")
_NUMBER = Struct(">Q")
NUMBER_BYTES = _NUMBER.size


def counts_row(tally: StatusCounts) -> bytes:
    return _COUNTS.pack(*tally)


def read_tally(row: bytes) -> StatusCounts:
    return list(_COUNTS.unpack(row))


def number_row(number: int) -> bytes:
    return _NUMBER.pack(number)


def read_number(row: bytes) -> int:
    number: int = _NUMBER.unpack(row)[0]
    return number


def numbers_row(numbers: list[int]) -> bytes:
    return b"".join(map(_NUMBER.pack, numbers))


def read_numbers(row: bytes) -> list[int]:
    return [number for (number,) in _NUMBER.iter_unpack(row)]
