"""The layout of keys in RocksDB.

There is one column family. A key begins with a byte for its space. Numbers are big-endian, so bytes have the order of
time:

    E partition run_at sequence                     a scheduled event
    W partition tenant 0 key 0 due_at sequence      a waiting event, in its key's order
    D tenant 0 run_at sequence                      a dead event
    L partition tenant 0 key                        the head that blocks a key
    I tenant 0 id                                   the key under which the event, or its record, lies now
    H hour tenant 0 id [0 occurrence]               a record, by the hour in which it expires
    C tenant                                        counts
    M name                                          facts about the store
    X key                                           a row that could not be decoded, by where it was

Names have no control characters, so a zero ends them and keeps the order of tuples. An event needs an entry in I only
if a client gave its id, or if it is not at home: the place that a made id contains. Column families would save the
first byte, but a put with their handle costs five times as much.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from everbell.core.event import Event
from everbell.core.time import HOUR_MS

_PLACE = Struct(">cHQQ")
_PARTITION = Struct(">cH")
_WITHIN = Struct(">QQ")
_HOUR = Struct(">cI")
_OCCURRENCE = Struct(">xQ")

PLACE_BYTES = _WITHIN.size  # (time, sequence), which ends every key of an unfinished event.

place_key = _PLACE.pack
"""`place_key(b"E", partition, run_at, sequence)`: one call for the hot path."""

SCHEDULED_KEY_BYTES = _PLACE.size

SEQUENCE_KEY = b"Msequence"
EPOCHS_KEY = b"Mepochs"
FRONTS_KEY = b"Mfronts"
SHAPE_KEY = b"Mshape"
CLUSTER_KEY = b"Mcluster"
SYNCED_KEY = b"Msynced"
"""The first row of every write: the sequence of RocksDB up to which its log was synced before (`torn_end`)."""


def event_key(event: Event) -> bytes:
    """The key of an unfinished event, which follows from its fields alone."""
    if event.state == "scheduled":
        return place_key(b"E", event.partition, event.run_at, event.sequence)
    if event.state == "waiting":
        line = line_prefix(event.partition, event.tenant, event.key or "")
        return line + _WITHIN.pack(event.due_at, event.sequence)
    return dead_prefix(event.tenant) + _WITHIN.pack(event.run_at, event.sequence)


def within(at: int, sequence: int) -> bytes:
    """The end of a key: (time, sequence)."""
    return _WITHIN.pack(at, sequence)


def place_of(key: bytes) -> tuple[int, int]:
    """The (time, sequence) that ends a key."""
    at, sequence = _WITHIN.unpack_from(key, len(key) - PLACE_BYTES)
    return at, sequence


def partition_prefix(space: bytes, partition: int) -> bytes:
    """The prefix of all keys of a partition in E, W or L."""
    return _PARTITION.pack(space, partition)


def line_prefix(partition: int, tenant: str, key: str) -> bytes:
    return b"%b%b\0%b\0" % (_PARTITION.pack(b"W", partition), tenant.encode(), key.encode())


def dead_prefix(tenant: str) -> bytes:
    return b"D%b\0" % tenant.encode()


def head_key(partition: int, tenant: str, key: str) -> bytes:
    return b"%b%b\0%b" % (_PARTITION.pack(b"L", partition), tenant.encode(), key.encode())


def names_in(head: bytes) -> tuple[str, str]:
    tenant, _, key = head[_PARTITION.size :].partition(b"\0")
    return tenant.decode(), key.decode()


def index_key(tenant: str, event_id: str) -> bytes:
    return f"I{tenant}\0{event_id}".encode()


def hour_of(keep_until_at: int) -> int:
    """The hour after which a record may be forgotten."""
    return keep_until_at // HOUR_MS


def hour_prefix(hour: int) -> bytes:
    return _HOUR.pack(b"H", hour)


def hour_in(key: bytes) -> int:
    hour: int = _HOUR.unpack_from(key)[1]
    return hour


def record_key(hour: int, tenant: str, event_id: str, occurrence: int | None = None) -> bytes:
    """The key of the record of a finished event (None), or of an earlier occurrence."""
    name = records_prefix(hour, tenant) + event_id.encode()
    return name if occurrence is None else name + _OCCURRENCE.pack(occurrence)


@lru_cache(4_096)
def records_prefix(hour: int, tenant: str) -> bytes:
    return b"%b%b\0" % (_HOUR.pack(b"H", hour), tenant.encode())


def index_of_record(key: bytes) -> bytes | None:
    """The key of the entry in I that may point at this record; None if there is no entry."""
    name = key[_HOUR.size :]
    tenant_end = name.index(b"\0")
    if name.startswith(b"ev_", tenant_end + 1) or b"\0" in name[tenant_end + 1 :]:
        return None
    return b"I" + name


def counts_key(tenant: str) -> bytes:
    return b"C" + tenant.encode()


def grave_key(key: bytes) -> bytes:
    """The key for a row that could not be decoded."""
    return b"X" + key


def after_prefix(prefix: bytes) -> bytes:
    """The first key after all keys with the prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
