"""Which members hold an event, and in which order they would deliver it.

Rendezvous hashing: each member has a score for each event, and the highest scores win. A member that joins or leaves
moves only the events that it gets or had. The scores use names and not incarnations, because a node that restarts has
a new incarnation and the same name, and shall get the same events back.

Replicas are spread over zones: the best member of every zone comes before the second best of any. The result is ordered
by score alone, so a change of the members never changes the order of those that stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b


class Roster:
    """The members that can hold events. Made once for each change of the members."""

    def __init__(self, zones: Mapping[str, str]) -> None:
        """`zones` has the zone of each member, by name."""
        self.names = tuple(sorted(zones))
        self.digest = int.from_bytes(blake2b(repr(sorted(zones.items())).encode(), digest_size=8).digest())
        """Two nodes with the same digest know the same members."""
        self._zones = dict(zones)
        self._is_spread = len(set(zones.values())) > 1
        # The hash of a name is computed once, and copied for each event.
        self._hashes = {name: blake2b(name.encode() + b"\0", digest_size=8) for name in self.names}
        self.replicas_of = lru_cache(maxsize=10_000)(self._replicas_of)

    def _replicas_of(self, name: str, count: int) -> tuple[str, ...]:
        """The members for the event with this name, first in line first. All members if there are too few."""
        encoded = name.encode()

        def score(member: str) -> bytes:
            hashed = self._hashes[member].copy()
            hashed.update(encoded)
            return hashed.digest()

        # Members with equal scores stay in the order of their names, also in reverse.
        ranked = sorted(self.names, key=score, reverse=True)
        if len(ranked) <= count:
            return tuple(ranked)
        if not self._is_spread:
            return tuple(ranked[:count])
        seen: dict[str, int] = {}
        rounds = []
        for place, member in enumerate(ranked):
            turn = seen[self._zones[member]] = seen.get(self._zones[member], -1) + 1
            rounds.append((turn, place))
        return tuple(ranked[place] for place in sorted(place for _, place in sorted(rounds)[:count]))
