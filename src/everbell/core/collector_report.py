"""The report of a process that collects an outbox to its node."""

from __future__ import annotations

from msgspec import Struct


class CollectorReport(Struct, array_like=True, frozen=True):
    """One report of a collector: its counts since the last report, and its health."""

    events: int = 0
    changes: int = 0
    """Cancels and reschedules that were made."""
    late: int = 0
    """Cancels and reschedules of events that had ended, or never were."""
    refused: int = 0
    is_collecting: bool = False
    """False: another process collects this outbox, and this one stands by."""
    waiting: int = 0
    """Rows that are not collected yet; numbers that were rolled back count until they are passed."""
    oldest_ms: int = 0
    """How long the oldest row has waited that was seen last; 0 if none waits."""
    trouble: str | None = None
    """Why rows cannot be collected."""
    is_over: bool = False
    """The collector has ended."""
