"""When each other node was last known to have no copy that this node does not know of.

A node that was cut off, or is only slow, may come back with a copy of an event that ended long ago. The end of an event
must be remembered until every such node has been heard of again. A node that is no longer a member counts as well: it
may live on the other side of a split. It is given up after a day.
"""

from __future__ import annotations

from collections.abc import Collection

from everbell.core.time import DAY_MS

AWAY_MAX_MS = DAY_MS
"""How long a node that is no longer a member may come back with its copies."""


class Sightings:
    """The other nodes, and when each was last in agreement with this one. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self._seen_ms: dict[str, int] = {}
        # When a node that is no longer a member was last one.
        self._member_ms: dict[str, int] = {}
        self._members: frozenset[str] = frozenset()

    def follow(self, members: Collection[str], now_ms: int) -> None:
        """The other nodes that are members now."""
        self._members = frozenset(members)
        for name in members:
            self._seen_ms.setdefault(name, -1)
            self._member_ms[name] = now_ms
        for name in [name for name, at_ms in self._member_ms.items() if now_ms - at_ms > AWAY_MAX_MS]:
            self.gone(name)

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
        self._member_ms.pop(name, None)

    def all_seen_since(self, at_ms: int) -> bool:
        """Whether every other node that may hold copies has been in agreement since then."""
        return min(self._seen_ms.values(), default=at_ms) >= at_ms

    def members_seen_since(self, at_ms: int) -> bool:
        """The same, but only of the members."""
        return all(self._seen_ms[name] >= at_ms for name in self._members)

    @property
    def away(self) -> tuple[str, ...]:
        """The nodes that are not members, and may hold copies."""
        return tuple(sorted(self._seen_ms.keys() - self._members))
