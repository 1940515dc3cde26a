"""Cron expressions: which local times they match. Time zones are the concern of `core.timetable`.

Five fields (minute, hour, day of month, month, day of week), or six with the seconds first. A field is a list of
values, ranges `a-b` and steps `*/n`, `a-b/n`, `a/n`; months and weekdays have names; a range may wrap around
(`SAT-SUN`, `22-2`). `L` is the last day of the month, `FRIL` its last Friday, `MON#2` its second Monday. When day of
month and day of week are both restricted (neither has a star), a day needs to match only one of them, as in any
cron.

Existing parsers accept undocumented dialects and expressions that never match, and search minute by minute. Here a
time of day is a number in mixed radix, so the next match and the number of matches between two times follow by
arithmetic.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import accumulate

from everbell.errors import InvalidInput

DAY_S = 86_400
EXPRESSION_LENGTH_MAX = 256

_YEAR_MAX = 9_998  # One year before `datetime` ends, so that adding an offset cannot overflow.
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
_WEEKDAYS = "SUN MON TUE WED THU FRI SAT".split()
_LAST = -1
_DIGITS_MAX = 9  # Leading zeros are allowed, up to a limit.
_DAYS_MAX = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CYCLE_YEARS = 400  # After this time the calendar repeats, days of the week included.
_YEARS_APART_MAX = 40  # Within this time, every date falls on every day of the week.

_YearKind = tuple[bool, int]
_CYCLE: list[_YearKind] = [(isleap(year), date(year, 1, 1).weekday()) for year in range(2000, 2000 + _CYCLE_YEARS)]
"""The kind of each year of a cycle. Years of one kind have the same days on the same days of the week."""
_YEAR_KINDS = {kind: 2000 + place for place, kind in enumerate(_CYCLE)}

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True)
class _Field:
    """The range and the names of one field."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int:
        if text in self.names:
            return self.names.index(text) + self.low
        number = _whole(text)
        if number is None or not self.low <= number <= self._top:
            named = f", or {self.names[0]} to {self.names[-1]}" if self.names else ""
            raise self.error(f"{text[:20]!r} is not a {self.name} ({self.low} to {self._top}{named})")
        return number

    @property
    def _top(self) -> int:
        return 7 if self is _WEEKDAY else self.high  # Sunday is 0 and also 7.

    def error(self, reason: str) -> InvalidInput:
        return InvalidInput(reason, "repeat.cron")

    def values(self, text: str) -> Iterable[int]:
        """The values of one item of a list: a value, a range or a star, each perhaps with a step."""
        whole, slash, step_text = text.partition("/")
        step = self._step(step_text, text) if slash else 1
        if whole in ("*", "?"):
            first, last = self.low, self.high
        elif "-" in whole:
            first_text, _, last_text = whole.partition("-")
            first, last = self.number(first_text), self.number(last_text)
        else:
            first = self.number(whole)
            last = self.high if slash else first
        size = self.high - self.low + 1
        span = last - first if last >= first else last - first + size
        return ((first - self.low + ahead) % size + self.low for ahead in range(0, span + 1, step))

    def _step(self, text: str, item: str) -> int:
        size = self.high - self.low + 1
        step = _whole(text)
        if step is None or not 1 <= step < size:
            raise self.error(
                f"{item[:20]!r} has no step of 1 to {size - 1} {self.name}s; for other intervals there is repeat.every"
            )
        return step


_SECOND = _Field("second", 0, 59)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day of the month", 1, 31)
_MONTH = _Field("month", 1, 12, tuple(_MONTHS))
_WEEKDAY = _Field("day of the week", 0, 6, tuple(_WEEKDAYS))


class Cron:
    """A parsed expression. All times are local seconds: seconds since 1970-01-01T00:00 on the wall clock.

    The days of a month are the bits of an integer, and the matches of all days are numbered from year 0 on. So the next
    match, the number of matches between two times and the match of a given number cost the same for any distance.
    """

    __slots__ = (
        "_by_number",
        "_by_weekday",
        "_either",
        "_first",
        "_hours",
        "_last_weekdays",
        "_minutes",
        "_months",
        "_months_of",
        "_names_last",
        "_per_day",
        "_seconds",
        "_years",
    )

    def __init__(
        self,
        seconds: set[int],
        minutes: set[int],
        hours: set[int],
        month_days: set[int],
        months: set[int],
        weekdays: set[tuple[int, int]],
        *,
        either: bool,
    ) -> None:
        """A day of the month of -1 is the last. A weekday is (0 for Sunday, which of the month): 1 to 5, -1 for the
        last, 0 for every. With `either`, a day needs to match only one of the two fields.
        """
        self._seconds = sorted(seconds)
        self._minutes = sorted(minutes)
        self._hours = sorted(hours)
        self._months = sorted(months)
        self._either = either
        self._by_number = sum(1 << day for day in month_days - {_LAST})
        self._names_last = _LAST in month_days
        # By the weekday of the first day of the month.
        self._by_weekday = [_days_of_weekdays(weekdays, first) for first in range(7)]
        self._last_weekdays = [weekday for weekday, which in weekdays if which == _LAST]
        self._years: list[int] = []
        self._months_of: dict[_YearKind, tuple[int, ...]] = {}
        self._per_day = len(seconds) * len(minutes) * len(hours)
        self._first = self._time(0)

    @property
    def names_hours(self) -> bool:
        """Whether the expression restricts the hour. If not, it means elapsed time rather than a time of day."""
        return len(self._hours) < 24

    def after(self, local_s: int) -> int | None:
        """The first match later than `local_s`; None beyond the calendar."""
        day, second = divmod(local_s + 1, DAY_S)
        rank = self._rank(second)
        found = self._day_from(day if rank < self._per_day else day + 1)
        if found is None:
            return None
        return found * DAY_S + (self._time(rank) if found == day else self._first)

    def number(self, local_s: int) -> int:
        """The number of matches up to `local_s`, itself included, since year 0."""
        day, second = divmod(local_s + 1, DAY_S)
        start = date.fromordinal(day + _EPOCH_DAY)
        year, month = start.year, start.month
        years = self._years or self._count_years()
        cycle, place = divmod(year, _CYCLE_YEARS)
        this_month = _days_of(self, year, month)
        days = cycle * years[-1] + years[place] + self._months_of[_CYCLE[place]][month - 1]
        days += (this_month & ((1 << start.day) - 1)).bit_count()
        return days * self._per_day + (self._rank(second) if this_month >> start.day & 1 else 0)

    def match(self, number: int) -> int | None:
        """The match after the first `number` ones; None beyond the calendar. `match(number(t))` is `after(t)`."""
        days, rank = divmod(number, self._per_day)
        years = self._years or self._count_years()
        cycle, days = divmod(days, years[-1])
        place = bisect_right(years, days) - 1
        days -= years[place]
        year = cycle * _CYCLE_YEARS + place
        if year > _YEAR_MAX:
            return None
        months = self._months_of[_CYCLE[place]]
        month = bisect_right(months, days)
        found = _days_of(self, year, month)
        for _ in range(days - months[month - 1]):
            found &= found - 1
        return (date(year, month, _lowest(found)).toordinal() - _EPOCH_DAY) * DAY_S + self._time(rank)

    def _count_years(self) -> list[int]:
        """For each year of the calendar's cycle, the number of matching days in the years of the cycle before it.

        Likewise, for each kind of year, the number of matching days in the months before each month.
        """
        for kind, year in _YEAR_KINDS.items():
            days = (self.days_of(year, month).bit_count() for month in range(1, 13))
            self._months_of[kind] = tuple(accumulate(days, initial=0))
        self._years = list(accumulate((self._months_of[kind][-1] for kind in _CYCLE), initial=0))
        return self._years

    def _rank(self, second: int) -> int:
        """The number of matches in a day earlier than its `second`."""
        hour, second = divmod(second, 3_600)
        minute, second = divmod(second, 60)
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        rank = bisect_left(hours, hour)
        if rank == len(hours) or hours[rank] != hour:
            return rank * len(minutes) * len(seconds)
        place = bisect_left(minutes, minute)
        rank = rank * len(minutes) + place
        if place == len(minutes) or minutes[place] != minute:
            return rank * len(seconds)
        return rank * len(seconds) + bisect_left(seconds, second)

    def _time(self, rank: int) -> int:
        """The second of the day that has `rank` matches before it."""
        rank, second = divmod(rank, len(self._seconds))
        hour, minute = divmod(rank, len(self._minutes))
        return self._hours[hour] * 3_600 + self._minutes[minute] * 60 + self._seconds[second]

    def _day_from(self, day: int) -> int | None:
        """The first matching day from `day` on, in days since 1970."""
        start = date.fromordinal(day + _EPOCH_DAY)
        days = _days_of(self, start.year, start.month) >> start.day
        if days:
            return day + _lowest(days)
        months = self._months
        place = bisect_right(months, start.month)
        for year in range(start.year, min(start.year + _YEARS_APART_MAX, _YEAR_MAX) + 1):
            for month in months[place:]:
                days = _days_of(self, year, month)
                if days:
                    return date(year, month, _lowest(days)).toordinal() - _EPOCH_DAY
            place = 0
        return None

    def days_of(self, year: int, month: int) -> int:
        """The matching days of a month, as bits: bit 1 is the first day."""
        if month not in self._months:
            return 0
        monday_based, last = monthrange(year, month)
        first_weekday = (monday_based + 1) % 7
        by_number, by_weekday = self._by_number, self._by_weekday[first_weekday]
        if self._names_last:
            by_number |= 1 << last
        for weekday in self._last_weekdays:
            by_weekday |= 1 << last - (first_weekday + last - 1 - weekday) % 7
        return (by_number | by_weekday if self._either else by_number & by_weekday) & (2 << last) - 1


@lru_cache(maxsize=8_192)
def _days_of(cron: Cron, year: int, month: int) -> int:
    return cron.days_of(year, month)


def _days_of_weekdays(weekdays: set[tuple[int, int]], first_weekday: int) -> int:
    """The days, as bits, that a month beginning on that weekday has of weekdays that do not count from its end."""
    days = 0
    for weekday, which in weekdays:
        same = range((weekday - first_weekday) % 7 + 1, 32, 7)
        for day in same if which == 0 else same[which - 1 : which] if which > 0 else ():
            days |= 1 << day
    return days


def _lowest(days: int) -> int:
    """The number of the lowest bit."""
    return (days & -days).bit_length() - 1


@lru_cache(maxsize=1_024)
def parse_cron(text: str) -> Cron:
    """Parse an expression. Raises `InvalidInput` for invalid expressions and for those that never match."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise _error(f"is longer than {EXPRESSION_LENGTH_MAX} characters")
    fields = _fields(text)
    second, minute, hour, day, month, weekday = fields
    has_star = any(sign in field for field in (day, weekday) for sign in "*?")
    month_days, months = set(_days(day)), _list(_MONTH, month)
    if has_star and min(month_days) > max(_DAYS_MAX[number - 1] for number in months):
        raise _error(f"{text!r} never matches: no such month has a day {min(month_days)}")
    cron = Cron(
        _list(_SECOND, second),
        _list(_MINUTE, minute),
        _list(_HOUR, hour),
        month_days,
        months,
        set(_weekdays(weekday)),
        either=not has_star,
    )
    if not any(cron.days_of(year, number) for year in _YEAR_KINDS.values() for number in months):
        raise _error(f"{text!r} never matches: no day of such a month is both that day and that day of the week")
    return cron


def _fields(text: str) -> list[str]:
    words = text.split()
    if len(words) == 1 and words[0][0] == "@":
        full = SHORTHANDS.get(words[0].lower())
        if full is None:
            raise _error(f"{words[0][:20]!r} is not known; there are {', '.join(SHORTHANDS)}")
        words = full.split()
    if len(words) not in (5, 6):
        raise _error(
            f"has {len(words)} fields; there are five (minute, hour, day of month, month, day of week), "
            "or six with the seconds first"
        )
    return [word.upper() for word in (["0", *words] if len(words) == 5 else words)]


def _list(field: _Field, text: str) -> set[int]:
    return {value for item in text.split(",") for value in field.values(item)}


def _days(text: str) -> Iterable[int]:
    for item in text.split(","):
        if item == "L":
            yield _LAST
        else:
            yield from _DAY.values(item)


def _weekdays(text: str) -> Iterable[tuple[int, int]]:
    for item in text.split(","):
        if item == "L":
            raise _error("L alone is no day of the week; write FRIL for the last Friday of the month")
        if "#" in item:
            name, _, number = item.partition("#")
            if not re.fullmatch("[1-5]", number):
                raise _error(f"{item[:20]!r}: after # comes which of the month, 1 to 5")
            yield _WEEKDAY.number(name) % 7, int(number)
        elif item.endswith("L"):
            yield _WEEKDAY.number(item[:-1]) % 7, _LAST
        else:
            yield from ((value, 0) for value in _WEEKDAY.values(item))


def _whole(text: str) -> int | None:
    """The text as a number; None if it is not one, or has too many digits for any field."""
    return int(text) if len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit() else None


def _error(reason: str) -> InvalidInput:
    return InvalidInput(reason, "repeat.cron")
