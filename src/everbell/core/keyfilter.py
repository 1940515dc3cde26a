"""A small Bloom filter of keys: says "never seen" for certain, or "perhaps", in fixed memory however many keys there
are."""

from __future__ import annotations

from zlib import crc32


class KeyFilter:
    """Keys of tenants. Its hash is fixed, so that simulations do not depend on the interpreter's hash seed."""

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
