"""The events that the bare stores write: those that the engine would store for the same load."""

from __future__ import annotations

import msgspec

from everbell.bench.bodies import payload
from everbell.core.event import Event
from everbell.core.ids import make_id
from everbell.entropy import SeededEntropy

_SPAN_MS = 3_600_000
_DUE_FROM = 1_800_000_000_000
_PARTITIONS = 256
_SEED = 7


class BareEvents:
    """Batches of events. They differ, because identical rows would be quicker to write."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entropy = SeededEntropy(_SEED)

    def places(self, batch: int) -> list[tuple[int, int, int]]:
        """The (partition, due time, sequence) of each event of a batch."""
        numbers = range(batch * self._size, (batch + 1) * self._size)
        jitter = self._entropy.jitter
        return [(number >> 6 & _PARTITIONS - 1, _DUE_FROM + int(jitter() * _SPAN_MS), number) for number in numbers]

    def event(self, partition: int = 1, due_at: int = _DUE_FROM, number: int = 1) -> Event:
        """The event at a place, as the engine would store it."""
        made = make_id(due_at, number, partition, self._entropy.nonce())
        text = msgspec.json.encode(payload(number))
        return Event(made, "bench", partition, number, due_at, due_at, "queue:later", text, _DUE_FROM)
