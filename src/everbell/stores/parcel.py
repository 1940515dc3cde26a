"""Plain events on their way as the rows that they become: whoever checked them writes them down, once and for all.

Who has places for new events (`core.allotment`), as a gateway does, knows everything about a plain event that will be
in its row. So it makes the row, and the engine stores it unread; only what is due soon is read again, for memory.

The row is the one that `rows.encode` would make of the event, but that numbers have their full width: so everything in
front of the target is as long for one event as for the next, and is written for all of them at a time, column by
column, in a tenth of the time that each alone would take.

The keys are those of the embedded store. The others keep their rows in tables of their own, and take no parcels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import pack

from msgspec import Struct

from everbell.core.allotment import Allotment
from everbell.core.event import Event
from everbell.core.ids import DIGITS, PREFIX, digits_of
from everbell.core.plain import Plain
from everbell.stores.rocksdb_keys import SCHEDULED_KEY_BYTES
from everbell.stores.rows import encode, head_of, read_event

PARCEL_EVENTS_MAX = 1_000
"""It is what the engine stores as one: what was asked for together, and is no more than this, is stored or refused
together."""

_FIELDS = Event.__struct_fields__
_DEFAULTS = b"".join(encode(value) for value in Event.__struct_defaults__)
_U16, _U32, _U64, _BIN16, _BIN32 = b"\xcd", b"\xce", b"\xcf", b"\xc5", b"\xc6"
"""What MessagePack puts in front of a number or bytes of that many bits."""
_ARRAY = b"\xdc" + pack(">H", len(_FIELDS))
_TEXT8 = b"\xd9"
_KEY = SCHEDULED_KEY_BYTES


class Run(Struct, frozen=True, array_like=True, gc=False):
    """Events of a parcel that follow each other and lie in one partition."""

    partition: int
    count: int
    first_at: int
    last_at: int


class Parcel(Struct, frozen=True, array_like=True, gc=False):
    """New plain events of one tenant: where they go, and their rows."""

    tenant: str
    last_sequence: int
    runs: tuple[Run, ...]
    keys: list[bytes]
    rows: list[bytes]

    def __len__(self) -> int:
        return len(self.rows)

    def events(self, start: int = 0, end: int | None = None) -> list[Event]:
        """What the rows say."""
        return list(map(read_event, self.rows[start:end]))

    def plain(self) -> Plain:
        """The events without their places."""
        events = self.events()
        return Plain(
            [event.due_at for event in events], [event.to for event in events], [event.payload for event in events]
        )


def parcel_of(tenant: str, plain: Plain, allotment: Allotment, nonces: bytes, now: int) -> tuple[Parcel, list[str]]:
    """The events at the places of an allotment, and their ids; `nonces` is fresh randomness for each id."""
    count, dues = len(plain), plain.dues
    shares = allotment.runs()
    due = pack(f">{count}Q", *dues)
    sequence = pack(f">{count}Q", *range(allotment.first, allotment.first + count))
    partition = b"".join(pack(">H", index) * share for index, share in shares)
    digits = digits_of(due, sequence, partition, nonces)
    fronts, width = _fronts(tenant, digits, partition, sequence, due)
    keys = _table(b"E".ljust(_KEY), count, ((partition, 1, 2), (due, 3, 8), (sequence, 11, 8)))
    rows = _rows(tenant, plain, fronts, width, _U64 + pack(">Q", now) + _DEFAULTS)
    text = digits.decode()
    return (
        Parcel(
            tenant,
            allotment.first + count - 1,
            _runs(shares, dues),
            [keys[start : start + _KEY] for start in range(0, count * _KEY, _KEY)],
            rows,
        ),
        [PREFIX + text[start : start + DIGITS] for start in range(0, count * DIGITS, DIGITS)],
    )


def _fronts(tenant: str, digits: bytes, partition: bytes, sequence: bytes, due: bytes) -> tuple[bytes, int]:
    """For each row, what stands between its head and its target; and how long that is."""
    name = PREFIX.encode()
    before_id = _ARRAY + _TEXT8 + bytes([len(name) + DIGITS]) + name
    before_numbers = before_id + bytes(DIGITS) + encode(tenant)
    place = len(before_numbers)
    front = before_numbers + _U16 + bytes(2) + (_U64 + bytes(8)) * 3
    columns = (
        (digits, len(before_id), DIGITS),
        (partition, place + 1, 2),
        (sequence, place + 4, 8),
        (due, place + 13, 8),
        (due, place + 22, 8),
    )
    return _table(front, len(due) // 8, columns), len(front)


def _table(row: bytes, count: int, columns: Sequence[tuple[bytes, int, int]]) -> bytes:
    """The row so many times, with cells of its own in each: those of a column, where they go, how wide they are."""
    width = len(row)
    table = bytearray(row * count)
    for cells, offset, cell in columns:
        for byte in range(cell):
            table[offset + byte :: width] = cells[byte::cell]
    return bytes(table)


def _rows(tenant: str, plain: Plain, fronts: bytes, width: int, end: bytes) -> list[bytes]:
    rows = []
    start, last, head, target = 0, None, b"", b""
    for to, payload in zip(plain.targets, plain.payloads, strict=True):
        if to != last:
            last, head, target = to, head_of(tenant, to), encode(to)
        rows.append(b"".join((head, fronts[start : start + width], target, _bytes_head(len(payload)), payload, end)))
        start += width
    return rows


@lru_cache(4_096)
def _bytes_head(length: int) -> bytes:
    return _BIN16 + pack(">H", length) if length < 1 << 16 else _BIN32 + pack(">I", length)


def _runs(shares: Sequence[tuple[int, int]], dues: Sequence[int]) -> tuple[Run, ...]:
    runs = []
    start = 0
    for partition, count in shares:
        own = dues[start : start + count]
        runs.append(Run(partition, count, min(own), max(own)))
        start += count
    return tuple(runs)
