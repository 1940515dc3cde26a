"""The report of a gateway process about itself, to its node."""

from __future__ import annotations

from msgspec import Struct


class ProcessReport(Struct, array_like=True, frozen=True):
    """What one process has counted since it started."""

    unauthorized: int = 0
    """Requests without a valid access key, answered with 401."""
    blocks: int = 0
    """How often the event loop was blocked for more than a second."""
    blocked_ms: int = 0
    """The sum of those times."""

    def plus(self, other: ProcessReport) -> ProcessReport:
        return ProcessReport(
            self.unauthorized + other.unauthorized, self.blocks + other.blocks, self.blocked_ms + other.blocked_ms
        )
