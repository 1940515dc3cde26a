"""Ids of events that replicas hold. They tell any node which members to ask.

An id is `er_` and 32 characters that encode 24 bytes, most significant first:

    due time (6 bytes, ms) · nonce (9 bytes) · bloom filter of the replicas' names (9 bytes)

The filter has a fixed size, so an id does not grow with the number of replicas. The bits of each member are computed
once; the check is `filter & bits == bits`. It never misses a replica, and names another member in about 1 of 600
cases (with 3 replicas). Placement uses the part before the filter, so it does not depend on earlier placements.
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from everbell.core.ids import ALPHABET, DECODE, ENCODE

REPLICA_PREFIX = "er_"
_FILTER_BYTES = 9
_BITS = _FILTER_BYTES * 8
_HASHES = 3
_DUE_MAX = (1 << 48) - 1
_LENGTH = len(REPLICA_PREFIX) + 32


def make_replica_id(due_at: int, nonce: bytes, bits: int) -> str:
    """The id of a new event; `nonce` is fresh randomness, `bits` the filter."""
    raw = min(due_at, _DUE_MAX).to_bytes(6) + nonce + bits.to_bytes(_FILTER_BYTES)
    return REPLICA_PREFIX + b2a_base64(raw, newline=False).translate(ENCODE).decode()


def stem_of(due_at: int, nonce: bytes) -> str:
    """The name by which a new event is placed, before its id is known."""
    return (min(due_at, _DUE_MAX).to_bytes(6) + nonce).hex()


def place_name(event_id: str) -> str:
    """The name by which an event is placed: the id without the filter, or a client-given id as it is."""
    raw = _raw(event_id)
    return event_id if raw is None else raw[:-_FILTER_BYTES].hex()


def filter_in(event_id: str) -> int | None:
    """The filter inside an id; None for an id that a client gave."""
    raw = _raw(event_id)
    return None if raw is None else int.from_bytes(raw[-_FILTER_BYTES:])


@lru_cache(maxsize=1_024)
def bits_of(member: str) -> int:
    """The bits of one member's name."""
    digest = blake2b(member.encode(), digest_size=2 * _HASHES).digest()
    bits = 0
    for start in range(0, len(digest), 2):
        bits |= 1 << int.from_bytes(digest[start : start + 2]) % _BITS
    return bits


ALL_BITS = (1 << _BITS) - 1
"""The filter that matches every member."""


def filter_of(members: Iterable[str]) -> int:
    """The filter that matches all these members."""
    bits = 0
    for member in members:
        bits |= bits_of(member)
    return bits


def matches(bits: int, member: str) -> bool:
    """Whether a member may be among those of the filter. Never wrong about a member that is."""
    own = bits_of(member)
    return bits & own == own


def is_replica_id(event_id: str) -> bool:
    """Whether the id has the form that only Everbell makes for events of replicas."""
    return event_id.startswith(REPLICA_PREFIX)


def _raw(event_id: str) -> bytes | None:
    if len(event_id) != _LENGTH or not is_replica_id(event_id) or not ALPHABET.issuperset(event_id[3:]):
        return None
    try:
        return a2b_base64(event_id[3:].encode().translate(DECODE))
    except Error:
        return None
