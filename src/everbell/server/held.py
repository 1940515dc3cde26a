"""How much of request bodies is in memory, over all connections of a server.

Each body has a limit of its own, and so has the number of connections; but ten thousand of the largest bodies would
still be too much. A body counts from its first byte until its request is answered, also when the client left meanwhile,
for its handler goes on. What comes when the limit is reached is refused, and may be sent again.
"""

from __future__ import annotations


class HeldBodies:
    """A count that never exceeds its limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def take(self, count: int) -> bool:
        """Count some bytes; False when there is no room for them."""
        held = self.bytes + count
        if held > self.bytes_max:
            return False
        self.bytes = held
        return True

    def give_back(self, count: int) -> None:
        """They are no longer held."""
        self.bytes -= count
        assert self.bytes >= 0, "what is given back was taken"
