"""The report of a process that reads Kafka topics to its node."""

from __future__ import annotations

from msgspec import Struct


class ReaderReport(Struct, array_like=True, frozen=True):
    """One report of a reader: its counts since the last report, and its health."""

    records: int = 0
    events: int = 0
    refused: int = 0
    letters_lost: int = 0
    """Refused records for which no dead letter could be written."""
    lags: dict[str, int] = {}
    """Unread records by topic."""
    trouble: str | None = None
    """Why the reader cannot read."""
    is_over: bool = False
    """The reader has left the consumer group."""
