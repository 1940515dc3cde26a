"""Instants and durations as people write them.

Inside Everbell an instant is an `int`: milliseconds since 1970-01-01T00:00:00Z. A duration is an `int` of
milliseconds. Fractions of a millisecond are rounded up, because an event must never ring early.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from everbell.errors import InvalidInput

INSTANT_MIN = 0
INSTANT_MAX = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
DURATION_MAX_MS = 1_000 * 366 * DAY_MS
TEXT_LENGTH_MAX = 64
"""Longer texts of instants and durations are refused before they are parsed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = {f".{number:03}Z": number for number in range(1_000)}
_SECONDS = {f":{number:02}": number * SECOND_MS for number in range(60)}
_MINUTES_KEPT = 4_096
_MICROSECOND = timedelta(microseconds=1)
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.(?P<fraction>\d{1,18}))?"
    # `datetime` accepts an offset of 99 minutes, so the regular expression checks hours and minutes.
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_NO_OFFSET = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?", re.ASCII)
_PARTS = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w)", re.ASCII)
_SPELLED = re.compile(r"\s*(week|day|hour|minute|second)s?\s*", re.IGNORECASE)
_ISO = re.compile(
    r"P(?:(?P<w>\d{1,9})W)?(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
_UNIT_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}

Duration = str | int | float
"""A duration in user input: text, or a number of seconds."""

INSTANT_EXAMPLE = "2026-11-20T10:00:00Z"
DURATION_EXAMPLES = '"250ms", "90s", "1h30m", "PT20M" or a number of seconds'


def parse_instant(text: str, field: str = "at") -> int:
    """Parse an RFC 3339 time with an offset. A finer fraction is rounded up to the next millisecond."""
    # Fast path for UTC with milliseconds, the form that most programs write. Many events share a minute, so minutes
    # are cached.
    if len(text) == 24:
        second, millisecond = _SECONDS.get(text[16:19]), _MILLISECONDS.get(text[19:])
        if second is not None and millisecond is not None:
            minute_at = _minute_at(text[:16])
            if minute_at is not None:
                return minute_at + second + millisecond
    if len(text) > TEXT_LENGTH_MAX:
        raise _too_long(text, field, INSTANT_EXAMPLE)
    match = _RFC3339.fullmatch(text)
    if match is None:
        if _NO_OFFSET.fullmatch(text):
            raise InvalidInput(f"{text!r} has no offset; write {INSTANT_EXAMPLE} or …+02:00", field)
        raise InvalidInput(f"{text!r} is not an RFC 3339 time with an offset such as {INSTANT_EXAMPLE}", field)
    try:
        moment = datetime.fromisoformat(text.upper())
        micros = (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        raise InvalidInput(f"{text!r} does not exist in the calendar", field) from None
    fraction = match["fraction"]
    beyond_micros = fraction is not None and len(fraction) > 6 and fraction[6:].strip("0") != ""
    at = -(-micros // 1_000)
    if beyond_micros and micros % 1_000 == 0:
        at += 1
    return check_instant(at, field)


@lru_cache(maxsize=_MINUTES_KEPT)
def _minute_at(text: str) -> int | None:
    """The instant of `2026-11-20T10:00` in UTC; None for any other form and for dates that do not exist."""
    # `datetime` accepts more forms than this one: offsets, and 24:00 as the end of a day.
    if not (text[4] == text[7] == "-" and text[10] == "T" and text[13] == ":" and text[11:13] < "24"):
        return None
    try:
        since = datetime.fromisoformat(text) - _EPOCH.replace(tzinfo=None)
    except ValueError:
        return None
    return since.days * DAY_MS + since.seconds * SECOND_MS if since.days >= 0 else None


def check_instant(at: int, field: str = "at") -> int:
    """Refuse an instant outside the years 1970 to 9999, which would overflow elsewhere."""
    if not INSTANT_MIN <= at <= INSTANT_MAX:
        raise InvalidInput("must lie between the years 1970 and 9999", field)
    return at


def parse_duration(value: str | int | float, field: str = "in") -> int:
    """Parse `"250ms"`, `"90s"`, `"3 days"`, `"1h30m"`, `"PT20M"`, or seconds, into milliseconds, rounded up."""
    if isinstance(value, str):
        if len(value) > TEXT_LENGTH_MAX:  # Checked before the call, because the cache would keep the text.
            raise _too_long(value, field, DURATION_EXAMPLES)
        total = _parse_duration_text(value, field)
    else:
        if not -DURATION_MAX_MS <= value <= DURATION_MAX_MS:  # This form also refuses NaN.
            raise InvalidInput("is longer than a thousand years", field)
        # Round to the microsecond first: 0.29 s means 290 ms, but the float is slightly larger.
        total = -(-round(value * 1_000_000) // 1_000)
    if total < 0:
        raise InvalidInput("must not be negative", field)
    if total > DURATION_MAX_MS:
        raise InvalidInput("is longer than a thousand years", field)
    return total


@lru_cache(maxsize=1_024)
def _parse_duration_text(text: str, field: str) -> int:
    if text.startswith("-"):
        raise InvalidInput("must not be negative", field)
    iso = _ISO.fullmatch(text.upper()) if text[:1] in ("P", "p") else None
    if iso is not None and not text.upper().endswith(("P", "T")):
        return sum(_scaled(number, unit) for unit, number in iso.groupdict().items() if number is not None)
    # Units may be spelled out, as in "1 hour 30 minutes".
    short = _SPELLED.sub(lambda match: match[1][0].lower(), text)
    parts = _PARTS.findall(short)
    if not parts or "".join(number + unit for number, unit in parts) != short:
        raise InvalidInput(f"{text!r} is not a duration such as {DURATION_EXAMPLES}", field)
    return sum(_scaled(number, unit) for number, unit in parts)


def _too_long(text: str, field: str, example: str) -> InvalidInput:
    beginning = text[:TEXT_LENGTH_MAX]
    return InvalidInput(f"{beginning!r}… is longer than {TEXT_LENGTH_MAX} characters; write {example}", field)


def _scaled(number: str, unit: str) -> int:
    """`number` units in milliseconds, rounded up, computed without floats."""
    whole, _, fraction = number.partition(".")
    scale = int(10 ** len(fraction))
    return -(-(int(whole) * scale + int(fraction or 0)) * _UNIT_MS[unit.lower()] // scale)


def format_instant(at: int) -> str:
    """Format an instant as RFC 3339 in UTC with milliseconds."""
    seconds, millis = divmod(at, 1_000)
    return f"{_format_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=4_096)
def _format_second(seconds: int) -> str:
    # Slicing the result of isoformat is ten times as fast as strftime.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def format_duration(duration_ms: int) -> str:
    """Format a duration so that `parse_duration` can read it: `1h30m`, `1m30s`, `250ms`."""
    if duration_ms == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, duration_ms = divmod(duration_ms, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
