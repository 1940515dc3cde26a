"""What librdkafka says itself, without what it says again and again while brokers are away."""

from __future__ import annotations

import logging

REPEAT_S = 10.0
_KINDS_MAX = 1_000


class Seldom(logging.Filter):
    """Lets the same kind of message of the same client and connection through once in a while."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith("CONFWARN"):
            return False  # Properties are for producers and consumers together, and each says so of the other's.
        kind = text.partition("]:")[0]
        told_s = self._told_s.get(kind)
        if told_s is not None and record.created - told_s < REPEAT_S:
            return False
        if len(self._told_s) >= _KINDS_MAX:
            self._told_s.clear()
        self._told_s[kind] = record.created
        return True


library_log = logging.getLogger("everbell.kafka.librdkafka")
library_log.addFilter(Seldom())
