"""The row of an event or a record, in every store: one byte for the format, then MessagePack.

The structs are arrays in MessagePack, and a new field goes to the end with a default, so older rows stay readable. Any
other change gets a new format byte, and both formats are read.

The second format of an event has a label between the two: eight bytes that stand for its tenant and the stem of its
target, zeros if it has a key. A reader recognises unwanted rows by their heads, which costs a tenth of decoding them.
Two labels may be the same by chance, so a row that was left out may be another event's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct, error

import msgspec

from everbell.core.event import Event, Record
from everbell.core.target import stem_of

EVENT_FORMAT = b"\x01"
LABELLED_FORMAT = b"\x02"
HEAD_BYTES = 9
NO_LABEL = LABELLED_FORMAT + bytes(HEAD_BYTES - 1)
"""The head of a row of an event with a key."""
_RECORD_FORMAT = 1

_RECORD = Struct(">BQ")

encode = msgspec.msgpack.Encoder().encode
"""`EVENT_FORMAT + encode(event)` is the row of an event: the hot path inlines this to save a call."""

_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_record = msgspec.msgpack.Decoder(Record).decode

StatusCounts = list[int]
"""A tenant's counts while they change, in the order of `Counts`."""

PENDING, DEAD = 0, 1
ENDED = {"delivered": 2, "cancelled": 3, "expired": 4}


def added(tally: StatusCounts | None, more: Sequence[int]) -> StatusCounts:
    return [*more] if tally is None else [old + new for old, new in zip(tally, more, strict=True)]


class BadRow(Exception):
    """A row that cannot be decoded."""


def event_row(event: Event) -> bytes:
    return EVENT_FORMAT + encode(event)


def labelled_row(event: Event) -> bytes:
    return (head_of(event.tenant, event.to) if event.key is None else NO_LABEL) + encode(event)


@lru_cache(4_096)
def head_of(tenant: str, target: str) -> bytes:
    """The head of a row of an event without a key: the format and the label."""
    return head_of_stem(tenant, stem_of(target))


@lru_cache(4_096)
def head_of_stem(tenant: str, stem: str) -> bytes:
    """The same for the stem of its target. Fixed for ever: stored events rely on it."""
    return LABELLED_FORMAT + blake2b(f"{tenant}\0{stem}".encode(), digest_size=HEAD_BYTES - 1).digest()


def read_event(row: bytes) -> Event:
    """Raises `BadRow`."""
    try:
        # Copying a small row is cheaper than making two views of it.
        if row[:1] == LABELLED_FORMAT:
            return _decode_event(row[HEAD_BYTES:])
        if row[:1] == EVENT_FORMAT:
            return _decode_event(row[1:])
        raise BadRow(f"unknown format {row[:1].hex() or 'of an empty row'}")
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise BadRow(str(broken)) from broken


def record_row(record: Record, keep_until_at: int) -> bytes:
    return record_head(keep_until_at) + encode(record)


def record_head(keep_until_at: int) -> bytes:
    """The bytes in front of the record in its row."""
    return _RECORD.pack(_RECORD_FORMAT, keep_until_at)


def read_record(row: bytes) -> tuple[Record, int]:
    """The record, and the time until which it is kept. Raises `BadRow`."""
    try:
        row_format, keep_until_at = _RECORD.unpack_from(row)
        if row_format != _RECORD_FORMAT:
            raise BadRow(f"unknown format {row_format:02x}")
        return _decode_record(memoryview(row)[_RECORD.size :]), keep_until_at
    except (msgspec.DecodeError, UnicodeDecodeError, error) as broken:
        raise BadRow(str(broken)) from broken
