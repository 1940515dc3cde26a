"""The only module that makes randomness: nonces for ids, jitter for retries."""

from __future__ import annotations

import os
import random
from typing import Protocol

_POOL_BYTES = 9 * 1_024


class Entropy(Protocol):
    """Where randomness comes from."""

    def nonce(self) -> bytes:
        """Nine unguessable bytes."""
        ...

    def nonces(self, count: int) -> bytes:
        """So many nonces, one after the other."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...


class SystemEntropy:
    """The kernel's randomness, fetched for a thousand ids at a time: a system call per id would cost more than the
    id."""

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0
        self.jitter = random.Random(os.urandom(16)).random

    def nonce(self) -> bytes:
        start = self._used
        if start >= len(self._pool):
            self._pool, start = os.urandom(_POOL_BYTES), 0
        self._used = start + 9
        return self._pool[start : start + 9]

    def nonces(self, count: int) -> bytes:
        return os.urandom(9 * count)


class SeededEntropy:
    """Repeatable randomness for tests and simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.jitter = self._random.random

    def nonce(self) -> bytes:
        return self._random.randbytes(9)

    def nonces(self, count: int) -> bytes:
        return b"".join(self.nonce() for _ in range(count))
