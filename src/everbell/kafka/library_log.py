"""The log of librdkafka, without the messages that it repeats while brokers are away."""

from __future__ import annotations

import logging

REPEAT_S = 10.0
_KINDS_MAX = 1_000


class Seldom(logging.Filter):
    """Passes one message of a kind, client and connection every `REPEAT_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith("CONFWARN"):
            return False  # Producers and consumers share properties, and each warns about the other's.
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
