"""Event ids made by Everbell.

An id is `ev_` and 32 characters that spell 24 bytes, most significant first:

    due time (6 bytes, ms) · sequence (7 bytes) · partition (2 bytes) · nonce (9 bytes)

So ids sort by the time for which the event was scheduled, and then by acceptance; they carry the partition and the
place of the event in it, so that finding an event by its id needs no index; the sequence is persisted by the store,
so it never repeats after a restart or a clock step; and 72 random bits make an id as hard to guess as a good token.

The alphabet is in ASCII order, which keeps the order of the bytes, and is safe in URLs. The prefix keeps made ids
apart from ids given by clients (which may not begin with it), and keeps a leading `-` from looking like a flag on a
command line.
"""

from __future__ import annotations

import struct
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from zlib import crc32

PREFIX = "ev_"
NONCE_BYTES = 9
SEQUENCE_MAX = (1 << 56) - 1

DIGITS = 32
"""How many characters follow the prefix."""
_BYTES = 24
_FEW = 24
_LENGTH = len(PREFIX) + DIGITS
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SORTED = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_ENCODE = bytes.maketrans(_BASE64, _SORTED)
_DECODE = bytes.maketrans(_SORTED, _BASE64)
_ALPHABET = frozenset(_SORTED.decode())


def make_id(due_at: int, sequence: int, partition: int, nonce: bytes) -> str:
    """The id of a new event; `nonce` is `NONCE_BYTES` of fresh randomness."""
    place = (due_at << 72 | sequence << 16 | partition).to_bytes(15, "big")
    return PREFIX + b2a_base64(place + nonce, newline=False).translate(_ENCODE).decode()


def make_ids(dues: Sequence[int], first: int, partitions: Sequence[int], nonces: bytes) -> list[str]:
    """The ids of many new events with consecutive sequences.

    The columns are written one after the other, all rows at a time: for a thousand ids that takes a quarter of the
    time of making each.
    """
    count = len(dues)
    if count < _FEW:
        starts = range(0, count * NONCE_BYTES, NONCE_BYTES)
        return [
            make_id(due_at, first + i, partitions[i], nonces[start : start + NONCE_BYTES])
            for i, (due_at, start) in enumerate(zip(dues, starts, strict=True))
        ]
    sequences = struct.pack(f">{count}Q", *range(first, first + count))
    text = digits_of(
        struct.pack(f">{count}Q", *dues), sequences, struct.pack(f">{count}H", *partitions), nonces
    ).decode()
    return [PREFIX + text[start : start + DIGITS] for start in range(0, DIGITS * count, DIGITS)]


def digits_of(dues: bytes, sequences: bytes, partitions: bytes, nonces: bytes) -> bytes:
    """What follows the prefix in each of many ids, one after the other; dues and sequences have 8 bytes each,
    partitions 2."""
    table = bytearray(_BYTES * (len(dues) // 8))
    column = 0
    for cells, width, used in ((dues, 8, 6), (sequences, 8, 7), (partitions, 2, 2), (nonces, NONCE_BYTES, NONCE_BYTES)):
        for byte in range(width - used, width):
            table[column::_BYTES] = cells[byte::width]
            column += 1
    return b2a_base64(table, newline=False).translate(_ENCODE)


def is_made(event_id: str) -> bool:
    """Whether the id is one that only Everbell may make."""
    return event_id.startswith(PREFIX)


def place_in(event_id: str) -> tuple[int, int, int] | None:
    """The (due time, sequence, partition) that a made id carries; None for any other text."""
    if len(event_id) != _LENGTH or not event_id.startswith(PREFIX) or not _ALPHABET.issuperset(event_id[3:]):
        return None
    try:
        raw = int.from_bytes(a2b_base64(event_id[3:].encode().translate(_DECODE))[:15], "big")
    except Error:
        return None
    return raw >> 72, raw >> 16 & SEQUENCE_MAX, raw & 0xFFFF


def partition_of(tenant: str, name: str, partitions: int) -> int:
    """The partition of a key, or of a client-given id where there is no key.

    Fixed for ever: stored events rely on it.
    """
    return crc32(f"{tenant}\0{name}".encode()) % partitions


Slices = Mapping[str, tuple[int, int]]
"""For tenants that have partitions of their own: the first of them, and how many."""


def partition_in(slices: Slices, tenant: str, name: str, partitions: int) -> int:
    """The same, where some tenants have a slice of the partitions to themselves."""
    if slices and tenant in slices:
        first, count = slices[tenant]
        return first + partition_of(tenant, name, count)
    return partition_of(tenant, name, partitions)
