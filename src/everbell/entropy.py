"""The only module that makes randomness: nonces for ids, jitter for retries."""

from __future__ import annotations

import os
import random
from typing import Protocol


class Entropy(Protocol):
    """A source of randomness."""

    def nonce(self) -> bytes:
        """Nine unguessable bytes."""
        ...

    def nonces(self, count: int) -> bytes:
        """`count` nonces, concatenated."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...


class SystemEntropy:
    """The kernel's randomness. It is not buffered, because forked processes would share the buffer."""

    def __init__(self) -> None:
        self.jitter = random.SystemRandom().random

    def nonce(self) -> bytes:
        return os.urandom(9)

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
