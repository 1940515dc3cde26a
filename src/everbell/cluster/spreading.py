"""Which owner gets the next event of a tenant that spreads its events (policy `placement: "spread"`).

Each owner gets events in proportion to its partitions, and owners take turns, so that events that arrive together do
not meet again at one node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from everbell.core.cluster.value import Placement


class Spreading:
    """Owners in turn. The turn goes on from one request to the next, so single events are spread as well as batches."""

    def __init__(self) -> None:
        self._turn = 0
        self._placed: Sequence[Placement] = ()
        self._order: list[str] = []

    def owners(self, partitions: Sequence[Placement]) -> Iterator[str]:
        """Owners of the partitions without an end, each as often as it owns one; "" while no partition has one."""
        if partitions != self._placed:
            self._placed = partitions
            self._order = interleaved([part.owner for part in partitions if part.owner and not part.to])
        while self._order:
            self._turn += 1
            yield self._order[self._turn % len(self._order)]
        while True:
            yield ""


def interleaved(owners: Sequence[str]) -> list[str]:
    """The same owners, with the repetitions of each as far apart as possible."""
    count, seen = Counter(owners), Counter[str]()
    places: list[tuple[float, str]] = []
    for owner in owners:
        places.append(((seen[owner] + 0.5) / count[owner], owner))
        seen[owner] += 1
    return [owner for _, owner in sorted(places)]
