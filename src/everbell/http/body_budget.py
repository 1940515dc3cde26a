"""How many bytes of request bodies are in memory, over all connections of a server.

Each body has a limit of its own, and so has the number of connections; but ten thousand of the largest bodies would
still be too much. A body counts from its first byte until its request is answered, even if the client has left, because
the handler goes on. The server refuses a body beyond the budget with 503; the client may send it again.
"""

from __future__ import annotations


class BodyBudget:
    """A count that never exceeds its limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def take(self, count: int) -> bool:
        """Count some bytes; False when the budget has no room for them."""
        held = self.bytes + count
        if held > self.bytes_max:
            return False
        self.bytes = held
        return True

    def give_back(self, count: int) -> None:
        """Release bytes that were taken before."""
        self.bytes -= count
        assert self.bytes >= 0, "a connection gives back only bytes that it took"
