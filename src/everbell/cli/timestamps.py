"""Times for people: how long until, how long ago, and when exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from everbell.core.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS))


def relative(moment: datetime, now: int) -> str:
    """`in 2h 3m`, `5s ago`, `now`."""
    away_ms = millis(moment) - now
    if abs(away_ms) < SECOND_MS // 2:
        return "now"
    distance = roughly(max(abs(away_ms), SECOND_MS))
    return f"in {distance}" if away_ms > 0 else f"{distance} ago"


def roughly(duration_ms: int) -> str:
    """`2h 3m`, `45s`, `250ms`: in the two largest units that matter, rounded."""
    if duration_ms < SECOND_MS:
        return f"{duration_ms}ms"
    for (unit, unit_ms), (smaller, smaller_ms) in pairwise(_UNITS):
        # Rounded first: 59.9 s are a minute, and not 60 s.
        rounded_ms = _round(duration_ms, smaller_ms)
        if rounded_ms >= unit_ms:
            count, rest_ms = divmod(rounded_ms, unit_ms)
            return f"{count}{unit} {rest_ms // smaller_ms}{smaller}" if rest_ms else f"{count}{unit}"
    return f"{_round(duration_ms, SECOND_MS) // SECOND_MS}s"


def _round(duration_ms: int, unit_ms: int) -> int:
    return (duration_ms + unit_ms // 2) // unit_ms * unit_ms


def exact(moment: datetime) -> str:
    """`2026-11-20 10:00:00 UTC`, with milliseconds where there are some."""
    at = moment.astimezone(UTC)
    fraction = f".{at.microsecond // 1_000:03d}" if at.microsecond >= 1_000 else ""
    return f"{at:%Y-%m-%d %H:%M:%S}{fraction} UTC"


def millis(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
