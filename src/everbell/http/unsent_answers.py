"""Answers that clients do not read: how many bytes of them wait in the write buffers of all connections.

A connection stops reading requests while its client reads no answers, so each holds few answers, but a few hundred such
clients would fill the memory with large ones. Beyond the limit, the connection whose client has read nothing for the
longest time is closed, then the next one. A transport keeps an answer as a whole until its last byte is sent, but
counts only the bytes that are left. So a connection with unsent bytes is charged for at least its largest answer.
"""

from __future__ import annotations

from typing import Protocol


class Unread(Protocol):
    """A connection with bytes in its write buffer."""

    waits_since_s: float
    """When its client last read something, on the loop's clock."""

    def abort(self) -> None: ...


class UnsentAnswers:
    """The bytes in write buffers, by connection."""

    __slots__ = ("_by_connection", "_bytes_max", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._by_connection: dict[Unread, int] = {}

    def note(self, connection: Unread, count: int) -> None:
        """Set the bytes that wait for one connection, and close connections if all together have too many."""
        known = self._by_connection
        self.bytes += count - known.pop(connection, 0)
        if count:
            known[connection] = count
        while self.bytes > self._bytes_max:
            slowest = min(known, key=lambda each: each.waits_since_s)
            self.bytes -= known.pop(slowest)
            slowest.abort()
