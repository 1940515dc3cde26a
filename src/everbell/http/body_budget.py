"""How many bytes of request bodies are in memory, over all connections of a server, and who holds them.

Each body has a limit of its own, and so has the number of connections; but ten thousand of the largest bodies would
still be too much. A body counts from its first byte until its request is answered, even if the client has left, because
the handler goes on. The server refuses a body beyond the budget with 503; the client may send it again.

A connection, and likewise an access key, may hold as many bytes as are still free. So one of them alone can use half
of the budget, and however many bodies some clients keep, there is room for the small bodies of others.
"""

from __future__ import annotations


class BodyHolder:
    """The bytes that one connection or one access key holds."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class BodyBudget:
    """A count that never exceeds its limit."""

    __slots__ = ("_keys", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._keys: dict[str, BodyHolder] = {}  # Only keys with a body in memory.

    def claim(self, connection: BodyHolder, key: str = "") -> BodyClaim:
        """Begin a body of a connection, and of an access key if that is known."""
        if not key:
            return BodyClaim(self, (connection,))
        return BodyClaim(self, (connection, self._keys.setdefault(key, BodyHolder())), key)

    def forget_if_empty(self, key: str) -> None:
        """Drop the count of a key that holds nothing."""
        holder = self._keys.get(key)
        if holder is not None and not holder.bytes:
            del self._keys[key]


class BodyClaim:
    """The bytes of one body."""

    __slots__ = ("_budget", "_holders", "_key", "bytes")

    def __init__(self, budget: BodyBudget, holders: tuple[BodyHolder, ...], key: str = "") -> None:
        self._budget = budget
        self._holders = holders
        self._key = key
        self.bytes = 0

    def take(self, count: int) -> bool:
        """Count some bytes; False when the budget, or a holder's share of it, has no room for them."""
        budget = self._budget
        free = budget.bytes_max - budget.bytes - count
        for holder in self._holders:
            if holder.bytes + count > free:
                return False
        for holder in self._holders:
            holder.bytes += count
        budget.bytes += count
        self.bytes += count
        return True

    def give_back(self) -> None:
        """Release the body. Safe to repeat."""
        count, self.bytes = self.bytes, 0
        for holder in self._holders:
            holder.bytes -= count
        self._budget.bytes -= count
        if self._key:
            self._budget.forget_if_empty(self._key)
