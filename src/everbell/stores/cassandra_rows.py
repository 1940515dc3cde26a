"""What an operation writes: a list of row changes that is kept in the journal, and made as often as need be.

Each change is a letter and its values, so that the list can be stored and read by another process. All of them have
the timestamp of their operation, and a later operation on the same rows has a higher one: making them again, or late,
changes nothing. Changes of rows that lie together go in one request, as long as that stays small: a server refuses one
that is too large (by default beyond 16 MiB), and an operation whose rows are refused can be finished by nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from everbell.stores.cassandra_link import Link, Statement

RowChange = tuple[Any, ...]
"""A letter of `_TEXTS`, then what to put in after the store's name."""

_FINISH = (
    "DELETE FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ? "
    "AND run_at = ? AND sequence = ?"
)
_GO_ON = (
    "DELETE FROM waiting WHERE store = ? AND partition = ? AND tenant = ? AND key = ? AND due_at = ? AND sequence = ?"
)

# The number is how many of the values, with the store's name, say where a row lies.
_TEXTS: dict[str, tuple[int, str]] = {
    "E": (
        4,
        "INSERT INTO scheduled (store, partition, bucket, shard, run_at, sequence, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
    ),
    "e": (
        4,
        _FINISH,
    ),
    "x": (4, "DELETE FROM scheduled WHERE store = ? AND partition = ? AND bucket = ? AND shard = ?"),
    "B": (2, "INSERT INTO buckets (store, partition, bucket, shard, first) VALUES (?, ?, ?, ?, ?)"),
    "b": (2, "DELETE FROM buckets WHERE store = ? AND partition = ? AND bucket = ?"),
    "M": (2, "INSERT INTO marks (store, partition, low) VALUES (?, ?, ?)"),
    "W": (
        4,
        "INSERT INTO waiting (store, partition, tenant, key, due_at, sequence, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
    ),
    "w": (
        4,
        _GO_ON,
    ),
    "L": (2, "INSERT INTO lines (store, partition, tenant, key) VALUES (?, ?, ?, ?)"),
    "l": (2, "DELETE FROM lines WHERE store = ? AND partition = ? AND tenant = ? AND key = ?"),
    "H": (2, "INSERT INTO heads (store, partition, tenant, key, head) VALUES (?, ?, ?, ?, ?)"),
    "h": (2, "DELETE FROM heads WHERE store = ? AND partition = ? AND tenant = ? AND key = ?"),
    "D": (3, "INSERT INTO dead (store, tenant, part, run_at, sequence, body) VALUES (?, ?, ?, ?, ?, ?)"),
    "d": (3, "DELETE FROM dead WHERE store = ? AND tenant = ? AND part = ? AND run_at = ? AND sequence = ?"),
    "R": (
        4,
        "INSERT INTO records (store,hour,tenant,part,id,occurrence,body) VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?",
    ),
    "S": (2, "INSERT INTO shelves (store, hour, tenant, part) VALUES (?, ?, ?, ?)"),
    "O": (1, "INSERT INTO hours (store, hour) VALUES (?, ?)"),
    "I": (3, "INSERT INTO ids (store, tenant, id, entry) VALUES (?, ?, ?, ?)"),
    "i": (3, "DELETE FROM ids WHERE store = ? AND tenant = ? AND id = ?"),
    "C": (1, "INSERT INTO counts (store, writer, tenant, tally) VALUES (?, ?, ?, ?)"),
    "c": (1, "DELETE FROM counts WHERE store = ? AND writer = ?"),
    "G": (
        2,
        "INSERT INTO graves (store, partition, space, at, sequence, tenant, key, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    ),
}

_CHUNK_BYTES = 512 << 10
_REQUEST_STATEMENTS = 100
_REQUEST_BYTES = 512 << 10
"""No more than one row beyond that."""
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode


def chunks_of(changes: Sequence[RowChange]) -> list[bytes]:
    """The changes as the journal keeps them."""
    whole = msgspec.msgpack.encode(changes)
    return [whole[start : start + _CHUNK_BYTES] for start in range(0, len(whole), _CHUNK_BYTES)]


def read_chunks(chunks: Sequence[bytes]) -> list[RowChange]:
    """The changes that the journal kept."""
    return _decode(b"".join(chunks))


async def make(link: Link, changes: Sequence[RowChange], clock: int, level: str) -> None:
    """Make the changes. When it raises, some may have been made; making all of them again is right."""
    store = link.address.store
    together: dict[tuple[Any, ...], list[Statement]] = {}
    for letter, *values in changes:
        width, text = _TEXTS[letter]
        place = (text.split(None, 3)[2], *values[: width - 1])
        together.setdefault(place, []).append((text, (store, *values)))
    requests = [link.write(some, clock, level) for statements in together.values() for some in _requests(statements)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _requests(statements: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    """Some at a time: no more than so many, and not many bytes."""
    start = size = 0
    for index, (_, values) in enumerate(statements):
        if size >= _REQUEST_BYTES or index - start == _REQUEST_STATEMENTS:
            yield statements[start:index]
            start, size = index, 0
        size += sum(len(value) for value in values if isinstance(value, bytes))
    yield statements[start:]
