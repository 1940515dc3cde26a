"""Where each thing lies in RocksDB: the layout of keys.

One column family, a byte in front for each space, everything big-endian so that the order of bytes is the order of
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

Names have no control characters, so a zero ends them and keeps the order of tuples. An event needs an entry in I
only if its id was given by a client, or if it is not at home: the place that a made id carries. Column families
would save the first byte, but a put with a handle costs five times as much.
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

PLACE_BYTES = _WITHIN.size
"""(time, sequence), which ends every key of an unfinished event."""

place_key = _PLACE.pack
"""`place_key(b"E", partition, run_at, sequence)`: the hot path spells it out, this saves it a call."""

SCHEDULED_KEY_BYTES = _PLACE.size
"""How long the key of a scheduled event is."""

SEQUENCE_KEY = b"Msequence"
EPOCHS_KEY = b"Mepochs"
FRONTS_KEY = b"Mfronts"
SHAPE_KEY = b"Mshape"
CLUSTER_KEY = b"Mcluster"


def event_key(event: Event) -> bytes:
    """Where an unfinished event belongs; follows from its fields alone."""
    if event.state == "scheduled":
        return place_key(b"E", event.partition, event.run_at, event.sequence)
    if event.state == "waiting":
        line = line_prefix(event.partition, event.tenant, event.key or "")
        return line + _WITHIN.pack(event.due_at, event.sequence)
    return dead_prefix(event.tenant) + _WITHIN.pack(event.run_at, event.sequence)


def within(at: int, sequence: int) -> bytes:
    """(time, sequence) as it ends a key."""
    return _WITHIN.pack(at, sequence)


def place_of(key: bytes) -> tuple[int, int]:
    """The (time, sequence) that ends a key."""
    at, sequence = _WITHIN.unpack_from(key, len(key) - PLACE_BYTES)
    return at, sequence


def partition_prefix(space: bytes, partition: int) -> bytes:
    """What all keys of a partition in E, W or L begin with."""
    return _PARTITION.pack(space, partition)


def line_prefix(partition: int, tenant: str, key: str) -> bytes:
    """What all waiting events of a key begin with."""
    return b"%b%b\0%b\0" % (_PARTITION.pack(b"W", partition), tenant.encode(), key.encode())


def dead_prefix(tenant: str) -> bytes:
    """What all dead events of a tenant begin with."""
    return b"D%b\0" % tenant.encode()


def head_key(partition: int, tenant: str, key: str) -> bytes:
    """Where the head of a blocked key is written down."""
    return b"%b%b\0%b" % (_PARTITION.pack(b"L", partition), tenant.encode(), key.encode())


def names_in(head: bytes) -> tuple[str, str]:
    """The (tenant, key) in a key of L."""
    tenant, _, key = head[_PARTITION.size :].partition(b"\0")
    return tenant.decode(), key.decode()


def index_key(tenant: str, event_id: str) -> bytes:
    """Where it is written down where an event lies."""
    return f"I{tenant}\0{event_id}".encode()


def hour_of(keep_until_at: int) -> int:
    """The hour at whose end a record may be forgotten."""
    return keep_until_at // HOUR_MS


def hour_prefix(hour: int) -> bytes:
    """What all records that expire in an hour begin with."""
    return _HOUR.pack(b"H", hour)


def hour_in(key: bytes) -> int:
    """The hour in a key of H."""
    hour: int = _HOUR.unpack_from(key)[1]
    return hour


def record_key(hour: int, tenant: str, event_id: str, occurrence: int | None = None) -> bytes:
    """Where a record lies: that of an event that is over under its id, that of an earlier occurrence beside it."""
    name = records_prefix(hour, tenant) + event_id.encode()
    return name if occurrence is None else name + _OCCURRENCE.pack(occurrence)


@lru_cache(4_096)
def records_prefix(hour: int, tenant: str) -> bytes:
    """What all records of a tenant that expire in an hour begin with."""
    return b"%b%b\0" % (_HOUR.pack(b"H", hour), tenant.encode())


def index_of_record(key: bytes) -> bytes | None:
    """The entry in I that may name this record; None for a record that no entry names."""
    name = key[_HOUR.size :]
    tenant_end = name.index(b"\0")
    if name.startswith(b"ev_", tenant_end + 1) or b"\0" in name[tenant_end + 1 :]:
        return None
    return b"I" + name


def counts_key(tenant: str) -> bytes:
    """Where a tenant's counts lie."""
    return b"C" + tenant.encode()


def grave_key(key: bytes) -> bytes:
    """Where a row that could not be decoded is set aside."""
    return b"X" + key


def after_prefix(prefix: bytes) -> bytes:
    """The first key that is beyond all keys with the prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
