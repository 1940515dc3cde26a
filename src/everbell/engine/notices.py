"""Log lines about things that may happen thousands of times a second: one line a minute for each, with a count.

A line is told apart by its kind and its subject. Digits in a subject do not count, because reasons often contain ids.
"""

from __future__ import annotations

import logging
import re

from everbell.clock import Clock
from everbell.core.time import MINUTE_MS

_log = logging.getLogger("everbell.engine")

LINES_MAX = 30
"""The number of different lines of one kind in a minute."""
_DIGITS = re.compile(r"[0-9]+")
_SUBJECT_LENGTH_MAX = 200


class Notices:
    """Tells what happens to events, and counts what it does not tell."""

    def __init__(self, clock: Clock) -> None:
        self._elapsed_ms = clock.elapsed_ms
        self._minute = -1
        self._told: dict[str, dict[str, int]] = {}
        """By kind and subject: the number of times in this minute after the first."""

    def tell(self, kind: str, subject: str, message: str) -> None:
        """Log a warning, unless this minute has one of the same kind and subject."""
        self._turn()
        subjects = self._told.setdefault(kind, {})
        plain = _DIGITS.sub("#", subject[:_SUBJECT_LENGTH_MAX])
        if plain in subjects:
            subjects[plain] += 1
        elif len(subjects) >= LINES_MAX:
            subjects[""] = subjects.get("", 0) + 1
        else:
            subjects[plain] = 0
            _log.warning("%s", message)

    def flush(self) -> None:
        """Log the counts of the last minute, if it is over."""
        self._turn()

    def _turn(self) -> None:
        minute = self._elapsed_ms() // MINUTE_MS
        if minute == self._minute:
            return
        self._minute = minute
        for kind, subjects in self._told.items():
            more = sum(subjects.values())
            if more:
                _log.warning("%s: %d more of the same or similar in the last minute", kind, more)
        self._told.clear()
