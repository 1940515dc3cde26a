"""When each other node was last known to have no copy that this node does not know of.

A node that was cut off, or is only slow, may come back with a copy of an event that ended long ago. The end of an event
must be remembered until every such node has been heard of again. A node that is no longer a member counts as well: it
may live on the other side of a split. It is given up after a day.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from everbell.core.time import DAY_MS, MINUTE_MS

AWAY_MAX_MS = DAY_MS
"""How long a node that is no longer a member may come back with its copies."""
DOUBT_MS = 15 * MINUTE_MS
"""How long after such a node left it is not certain that an event does not exist."""


class Sightings:
    """The other nodes, and when each was last in agreement with this one. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self._seen_ms: dict[str, int] = {}
        # When each node ceased to be a member that did not say that it has given its copies away.
        self._left_ms: dict[str, int] = {}
        self._members: frozenset[str] = frozenset()
        self._followed_ms = -1

    def follow(self, members: Collection[str], now_ms: int) -> None:
        """The other nodes that are members now."""
        for name in self._members.difference(members):
            if name in self._seen_ms:
                self._left_ms[name] = now_ms
        self._members = frozenset(members)
        self._followed_ms = now_ms
        for name in members:
            self._seen_ms.setdefault(name, -1)
            self._left_ms.pop(name, None)

    def agree(self, name: str, now_ms: int) -> None:
        """A node has said that it is in agreement, and this node has nothing to tell it."""
        if name in self._seen_ms:
            self._seen_ms[name] = now_ms

    def differ(self, name: str) -> None:
        """A node has started anew, or missed messages: an earlier agreement no longer counts."""
        if name in self._seen_ms:
            self._seen_ms[name] = -1

    def gone(self, name: str) -> None:
        """A node has stopped, and has given all its copies away."""
        self._seen_ms.pop(name, None)
        self._left_ms.pop(name, None)

    def learn_away(self, away: Iterable[tuple[str, int]], now_ms: int) -> None:
        """Another node knows of nodes that are not members, and may hold copies: their names, and since how long."""
        for name, since_ms in away:
            if name not in self._members and name not in self._left_ms and since_ms < AWAY_MAX_MS:
                self._seen_ms[name] = -1
                self._left_ms[name] = now_ms - since_ms

    def give_up(self, now_ms: int) -> None:
        """Forget the nodes that left too long ago."""
        for name in [name for name, left_ms in self._left_ms.items() if now_ms - left_ms > AWAY_MAX_MS]:
            self.gone(name)

    def all_seen_since(self, at_ms: int) -> bool:
        """Whether every other node that may hold copies has been in agreement since then."""
        return min(self._seen_ms.values(), default=at_ms) >= at_ms

    def members_seen_since(self, at_ms: int) -> bool:
        """The same, but only of the members."""
        return all(self._seen_ms.get(name, -1) >= at_ms for name in self._members)

    def have_agreed(self) -> bool:
        """Whether all members have been in agreement since the members changed last."""
        return self.members_seen_since(self._followed_ms)

    @property
    def away(self) -> tuple[str, ...]:
        """The nodes that are not members, and may hold copies."""
        return tuple(sorted(self._left_ms))

    def away_since(self, now_ms: int) -> list[tuple[str, int]]:
        """Those nodes, and since how long they have been away."""
        return [(name, now_ms - left_ms) for name, left_ms in sorted(self._left_ms.items())]

    def doubtful(self, now_ms: int) -> tuple[str, ...]:
        """The nodes that left so recently that they may come back soon."""
        return tuple(name for name, since_ms in self.away_since(now_ms) if since_ms < DOUBT_MS)
