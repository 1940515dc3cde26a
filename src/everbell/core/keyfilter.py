"""Bloom filters of keys: "never added" is certain, "perhaps" may be wrong; memory is fixed for any number of keys."""

from __future__ import annotations

from zlib import crc32

_BITS_FIRST = 4_096
_BITS_MAX = 1 << 19
_BITS_A_KEY = 32


class KeyFilter:
    """A filter of fixed size. Its hash is fixed, so that simulations do not depend on the interpreter's hash seed."""

    __slots__ = ("_bits", "_mask")

    def __init__(self, bits: int) -> None:
        assert bits >= 8, "a filter has at least a byte"
        assert bits & (bits - 1) == 0, "a power of two, so that a mask can take the place of a division"
        self._bits = bytearray(bits // 8)
        self._mask = bits - 1

    def add(self, tenant: str, key: str) -> None:
        for bit in self._places(tenant, key):
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def perhaps(self, tenant: str, key: str) -> bool:
        """False only if the key was never added."""
        return all(self._bits[bit >> 3] & 1 << (bit & 7) for bit in self._places(tenant, key))

    def _places(self, tenant: str, key: str) -> tuple[int, int]:
        first = crc32(f"{tenant}\0{key}".encode())
        return first & self._mask, (first * 0x9E3779B1 >> 15) & self._mask


class GrowingKeyFilter:
    """A filter for an unknown number of keys where a wrong "perhaps" is expensive.

    It is wrong for about one key in a thousand and takes about 4 bytes for each key, up to 100 kB.
    """

    __slots__ = ("_filters", "_room")

    def __init__(self) -> None:
        self._filters: list[tuple[bytearray, int]] = []  # The filters with their masks; keys go into the last one.
        self._room = 0

    def add(self, tenant: str, key: str) -> None:
        if self.perhaps(tenant, key):
            return
        if self._room == 0:
            self._grow()
        self._room -= 1
        last, mask = self._filters[-1]
        for hashed in _hashes(tenant, key):
            bit = hashed & mask
            last[bit >> 3] |= 1 << (bit & 7)

    def perhaps(self, tenant: str, key: str) -> bool:
        """False only if the key was never added."""
        hashes = _hashes(tenant, key)
        return any(
            all(bits[(hashed & mask) >> 3] & 1 << (hashed & 7) for hashed in hashes) for bits, mask in self._filters
        )

    def _grow(self) -> None:
        """Add a filter four times as large as the last. At the largest size the last filter is reused, and errors
        increase.
        """
        bits = min(_BITS_FIRST << 2 * len(self._filters), _BITS_MAX)
        if not self._filters or self._filters[-1][1] + 1 < _BITS_MAX:
            self._filters.append((bytearray(bits // 8), bits - 1))
        self._room = bits // _BITS_A_KEY


def _hashes(tenant: str, key: str) -> tuple[int, int, int, int]:
    first = crc32(f"{tenant}\0{key}".encode())
    return first, first * 0x9E3779B1 >> 15, first * 0x85EBCA6B >> 13, first * 0xC2B2AE35 >> 11
