"""The row changes of an operation, which the journal keeps and which can be made repeatedly.

A change is a letter and its values, so another process can read it. All changes of an operation have its timestamp, and
a later operation on the same rows has a higher one. So making changes again, or late, has no effect. Changes of rows
that lie together share a request. Requests stay small, because a server refuses large ones (by default, more than 16
MiB), and then no node could finish the operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from everbell.stores.cassandra.session import CassandraSession, Statement

RowChange = tuple[Any, ...]  # A letter of `_TEXTS`, then the values after the store's name.


def _insert(table: str, columns: str, more: str = "") -> str:
    names = ["store", *columns.split()]
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}){more}"  # noqa: S608 - names of this module


def _delete(table: str, columns: str) -> str:
    conditions = [f"{name} = ?" for name in ("store", *columns.split())]
    return f"DELETE FROM {table} WHERE {' AND '.join(conditions)}"  # noqa: S608 - names of this module


# By letter: how many values, with the store's name, are the partition key of Cassandra, and the text.
_TEXTS: dict[str, tuple[int, str]] = {
    "E": (4, _insert("scheduled", "partition bucket shard run_at sequence body")),
    "e": (4, _delete("scheduled", "partition bucket shard run_at sequence")),
    "x": (4, _delete("scheduled", "partition bucket shard")),
    "B": (2, _insert("buckets", "partition bucket shard first")),
    "b": (2, _delete("buckets", "partition bucket")),
    "M": (2, _insert("marks", "partition low")),
    "W": (4, _insert("waiting", "partition tenant key due_at sequence body")),
    "w": (4, _delete("waiting", "partition tenant key due_at sequence")),
    "L": (2, _insert("lines", "partition tenant key")),
    "l": (2, _delete("lines", "partition tenant key")),
    "H": (2, _insert("heads", "partition tenant key head")),
    "h": (2, _delete("heads", "partition tenant key")),
    "D": (3, _insert("dead", "tenant part run_at sequence body")),
    "d": (3, _delete("dead", "tenant part run_at sequence")),
    "R": (4, _insert("records", "hour tenant part id occurrence body", " USING TTL ?")),
    "S": (2, _insert("shelves", "hour tenant part")),
    "O": (1, _insert("hours", "hour")),
    "I": (3, _insert("ids", "tenant id entry")),
    "i": (3, _delete("ids", "tenant id")),
    "C": (1, _insert("counts", "writer tenant tally")),
    "c": (1, _delete("counts", "writer")),
    "G": (2, _insert("graves", "partition space at sequence tenant key body")),
}

_CHUNK_BYTES = 512 << 10
_REQUEST_STATEMENTS = 100
_REQUEST_BYTES = 512 << 10  # Plus at most one row.
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode


def chunks_of(changes: Sequence[RowChange]) -> list[bytes]:
    """The changes in the form that the journal keeps."""
    whole = msgspec.msgpack.encode(changes)
    return [whole[start : start + _CHUNK_BYTES] for start in range(0, len(whole), _CHUNK_BYTES)]


def read_chunks(chunks: Sequence[bytes]) -> list[RowChange]:
    return _decode(b"".join(chunks))


async def make(link: CassandraSession, changes: Sequence[RowChange], clock: int, level: str) -> None:
    """Make the changes. When it raises, some may have been made, and the caller may repeat all of them."""
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
    """Split statements into requests of limited length and size."""
    start = size = 0
    for index, (_, values) in enumerate(statements):
        if size >= _REQUEST_BYTES or index - start == _REQUEST_STATEMENTS:
            yield statements[start:index]
            start, size = index, 0
        size += sum(len(value) for value in values if isinstance(value, bytes))
    yield statements[start:]
