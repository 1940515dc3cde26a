"""A key that has something due, in memory: its head, its line, and what is known about the rest of it in the store."""

from __future__ import annotations

from everbell.engine.entry import Entry


class Lane:
    """One key that has something due."""

    __slots__ = ("asking", "away", "freed", "head", "horizon", "key", "line", "marked", "partition", "spills", "tenant")

    def __init__(self, partition: int, tenant: str, key: str) -> None:
        self.partition = partition
        self.tenant = tenant
        self.key = key
        self.head: Entry | None = None
        self.line: list[Entry] = []
        self.away: list[Entry] = []
        """Out of the line because a user is changing them; they keep their place until that is over."""
        self.horizon: int | None = None
        """The line is in memory up to this order; None: all of it."""
        self.marked = False
        """The store has a mark for the key. It stays there until nothing of the key is left in the store's line."""
        self.asking = False
        """The store is being asked whose turn it is; until then everybody lines up here."""
        self.freed = False
        """The mark was lifted while the store was being asked."""
        self.spills = 0
        """How many entries went to the store's line, so that a read can tell whether it may have missed some."""
