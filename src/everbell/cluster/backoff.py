"""The pauses between tries to join: each longer than the last, and random, so that no two nodes stay in step."""

from __future__ import annotations

from everbell.entropy import Entropy

_FIRST_S = 0.2
_MAX_S = 5.0


class Backoff:
    """Pauses that double until a try succeeds."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """The next pause."""
        pause_s = self._next_s * (0.5 + self._entropy.jitter())
        self._next_s = min(self._next_s * 2, _MAX_S)
        return pause_s

    def reset(self) -> None:
        """A try succeeded: start with the shortest pause again."""
        self._next_s = _FIRST_S
