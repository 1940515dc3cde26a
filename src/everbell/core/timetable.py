"""Timetables: a cron expression in a time zone, and its occurrences when the clocks change.

Zones come from the IANA database (`zoneinfo`). Where clocks go forward, some local times do not exist (a gap):
`skip` leaves them out, `after` rings once at the first instant after the gap. Where clocks go back, some local times
occur twice (repeated): `once` rings at the first, `twice` at both. An expression that names no hours (`*/5 * * * *`)
means elapsed time, so without an explicit rule it rings in both hours; any other rings once.

Instants in this module are seconds since 1970 UTC. No zone changes within a second.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Literal
from zoneinfo import ZoneInfo

from msgspec import Struct

from everbell.core.cron import Cron, parse_cron
from everbell.core.time import DAY_MS, INSTANT_MAX
from everbell.errors import InvalidInput

Gap = Literal["skip", "after"]
Repeated = Literal["once", "twice"]

# One year before the last instant, as in `core.cron`, so that no offset leads out of the calendar.
_LAST_S = (INSTANT_MAX - 366 * DAY_MS) // 1_000
_ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*", re.ASCII)
# Entries beside the zones: the machine's own zone, and zones that count leap seconds, which instants do not.
_NOT_ZONES = ("localtime", "posixrules", "posix/", "right/")
_STRIDE_S = 5 * 86_400  # Clocks have never changed twice within this time. They have within a week, in Recife in 2000.
_STRETCHES_MAX = 256  # The limit for each zone: more than a century.
_GAPS_MAX = 100
"""The limit of consecutive gaps without a match. Dates and weekdays combine in all ways within forty years, so after
this many gaps the expression names a time that never exists, such as half past two on the last Sunday of March.
Searching the whole calendar would take half a second.
"""


def check_zone(name: str) -> str:
    """Refuse an unknown time zone."""
    try:
        # `available_timezones()` would read the file of every zone.
        if not _ZONE_NAME.fullmatch(name) or name.startswith(_NOT_ZONES):
            raise KeyError(name)
        zone_of(name)
    except (KeyError, ValueError, OSError):
        reason = f"{name[:64]!r} is not a time zone such as Europe/Berlin, America/New_York or UTC"
        raise InvalidInput(reason, "repeat.tz") from None
    return name


class Stretch(Struct, gc=False):
    """A period without a clock change, as far as it has been explored."""

    start_s: int
    end_s: int
    offset: int
    is_over: bool = False
    """Whether the clocks change soon after the end."""


class Zone:
    """The clocks of a zone: converts between instants and local seconds (as in `core.cron`)."""

    def __init__(self, name: str) -> None:
        self._info = ZoneInfo(name)
        self._epoch = datetime(1970, 1, 1, tzinfo=self._info)
        self._stretches: list[Stretch] = []  # Ordered by start. Shared by all timetables of the zone.

    def stretch(self, at_s: int) -> Stretch | None:
        """The period without a clock change around an instant; None near a change."""
        place = bisect_right(self._stretches, at_s, key=_start_s)
        if place and at_s < (known := self._stretches[place - 1]).end_s:
            return known
        offset, fold = self.read(at_s)
        if fold or self.read(at_s + _STRIDE_S) != (offset, 0):
            return None
        if len(self._stretches) >= _STRETCHES_MAX:
            self._stretches.clear()
            place = 0
        self._stretches.insert(place, found := Stretch(at_s, at_s + _STRIDE_S, offset))
        return found

    def reaches(self, stretch: Stretch, at_s: int) -> bool:
        """Whether no change lies between the start of the stretch and an instant. Extends the stretch as needed."""
        while stretch.end_s <= at_s and not stretch.is_over:
            if self.read(stretch.end_s + _STRIDE_S) == (stretch.offset, 0):
                stretch.end_s += _STRIDE_S
            else:
                stretch.is_over = True
        return at_s < stretch.end_s

    def text(self, at_s: int) -> str:
        """The local time at an instant, with the offset."""
        return datetime.fromtimestamp(at_s, self._info).isoformat()

    def offset(self, at_s: int) -> int:
        """How many seconds the clocks are ahead of UTC at an instant."""
        return self.read(at_s)[0]

    def read(self, at_s: int) -> tuple[int, int]:
        """(offset, fold). The fold is 1 while the clocks show a local time for the second time."""
        moment = datetime.fromtimestamp(at_s, self._info)
        ahead = moment.utcoffset()
        assert ahead is not None, "every zone has an offset"
        return ahead.days * 86_400 + ahead.seconds, moment.fold

    def offsets(self, local_s: int) -> tuple[int, int]:
        """The offsets before and after the clock change at a local time; equal if there is no change.

        The first is smaller for a time in a gap, and larger for a repeated time.
        """
        wall = self._epoch + timedelta(seconds=local_s)
        before, after = wall.utcoffset(), wall.replace(fold=1).utcoffset()
        assert before is not None, "every zone has an offset"
        assert after is not None, "every zone has an offset"
        return before.days * 86_400 + before.seconds, after.days * 86_400 + after.seconds

    def change_at(self, local_s: int) -> int:
        """The instant of the change at a local time that is in a gap or repeated."""
        before, after = self.offsets(local_s)
        return self.change_between(local_s - max(before, after), local_s - min(before, after))

    def change_between(self, early_s: int, late_s: int) -> int:
        """The instant of the only change later than `early_s` and not later than `late_s`."""
        before = self.offset(early_s)
        while late_s - early_s > 1:
            middle_s = (early_s + late_s) // 2
            early_s, late_s = (middle_s, late_s) if self.offset(middle_s) == before else (early_s, middle_s)
        return late_s


class Timetable:
    """The occurrences of an expression in a zone."""

    __slots__ = ("_after_gap", "_cron", "_stretch", "_twice", "_zone")

    def __init__(self, cron: Cron, zone: Zone, gap: Gap, repeated: Repeated | None) -> None:
        self._cron = cron
        self._zone = zone
        self._after_gap = gap == "after"
        self._twice = not cron.names_hours if repeated is None else repeated == "twice"
        # The stretch of the last answer. The next question usually continues there and needs no look at the zone.
        self._stretch: Stretch | None = None

    def after(self, at_s: int) -> tuple[int | None, int]:
        """The first occurrence later than an instant (None beyond the calendar), and the number of gaps skipped."""
        if at_s >= _LAST_S:
            return None, 0
        stretch = self._stretch
        if stretch is None or not stretch.start_s <= at_s < stretch.end_s:
            stretch = self._stretch = self._zone.stretch(at_s)
        if stretch is not None:
            found = self._cron.after(at_s + stretch.offset)
            if found is None:
                return None, 0
            next_s = found - stretch.offset
            if next_s < stretch.end_s or (next_s < _LAST_S and self._zone.reaches(stretch, next_s)):
                return next_s, 0
        return self._near_change(at_s)

    def _near_change(self, at_s: int) -> tuple[int | None, int]:
        """`after` where the clocks change or may change."""
        offset, fold = self._zone.read(at_s)
        local_s = at_s + offset
        if self._twice or fold:
            again_s, local_s = self._in_repeated(local_s, fold)
            if again_s is not None:
                return again_s, 0
        return self._from_local(local_s)

    def _in_repeated(self, local_s: int, fold: int) -> tuple[int | None, int]:
        """In a period that the clocks show twice: the next occurrence inside it, if any, and otherwise the local time
        after which to continue.
        """
        before, after = self._zone.offsets(local_s)
        if before <= after:
            return None, local_s
        change_s = self._zone.change_at(local_s)
        start_s, end_s = change_s + after, change_s + before
        if self._twice:
            if (found := self._within(local_s, end_s)) is not None:
                return found - (after if fold else before), local_s
            if not fold and (found := self._within(start_s - 1, end_s)) is not None:
                return found - after, local_s
        return None, end_s - 1 if self._twice or fold else local_s

    def _within(self, local_s: int, end_s: int) -> int | None:
        found = self._cron.after(local_s)
        return found if found is not None and found < end_s else None

    def _from_local(self, local_s: int) -> tuple[int | None, int]:
        gaps = 0
        while gaps < _GAPS_MAX and (found := self._cron.after(local_s)) is not None:
            before, after = self._zone.offsets(found)
            if before >= after:
                return found - before, gaps
            change_s = self._zone.change_at(found)
            if self._after_gap:
                return change_s, gaps
            gaps += 1
            local_s = change_s + after - 1
        return None, gaps

    def count(self, after_s: int, until_s: int) -> int:
        """The number of occurrences later than `after_s` and not later than `until_s`.

        It is arithmetic except around clock changes, so a year of seconds costs no more than a year of days.
        """
        until_s = min(until_s, _LAST_S)
        total = 0
        while after_s < until_s:
            end_s = min(after_s + _STRIDE_S, until_s)
            total += self._count_stretch(after_s, end_s)
            after_s = end_s
        return total

    def _count_stretch(self, start_s: int, end_s: int) -> int:
        """`count` for a period with at most one change."""
        zone, count = self._zone, self._cron.count
        (before, fold), after = zone.read(start_s), zone.offset(end_s)
        local_s = start_s + before
        if fold and not self._twice:
            # The rest of the repeated period does not count.
            first, second = zone.offsets(local_s)
            local_s = zone.change_at(local_s) + max(first, second) - 1
        if before == after:
            return count(local_s, end_s + after)
        change_s = zone.change_between(start_s, end_s)
        total = count(local_s, change_s + before - 1)
        if after < before:
            return total + count(change_s + (after if self._twice else before) - 1, end_s + after)
        resumed_s = change_s + after
        if self._after_gap and count(change_s + before - 1, resumed_s - 1) and not count(resumed_s - 1, resumed_s):
            total += 1
        return total + count(resumed_s - 1, end_s + after)

    def latest(self, after_s: int, until_s: int) -> int | None:
        """The last occurrence later than `after_s` and not later than `until_s`."""
        found, _ = self.after(after_s)
        if found is None or found > until_s:
            return None
        # Invariant: an occurrence follows `known_s` in time, and none follows `beyond_s`.
        known_s, beyond_s = after_s, until_s
        while beyond_s - known_s > 1:
            middle_s = (known_s + beyond_s) // 2
            at_s, _ = self.after(middle_s)
            if at_s is not None and at_s <= until_s:
                known_s, found = middle_s, at_s
            else:
                beyond_s = middle_s
        return found


_start_s = attrgetter("start_s")


@lru_cache(maxsize=1_024)
def zone_of(name: str) -> Zone:
    """The zone with this name, which `check_zone` has accepted."""
    return Zone(name)


@lru_cache(maxsize=4_096)
def timetable_of(expression: str, zone: str, gap: Gap, repeated: Repeated | None) -> Timetable:
    """The timetable of an expression and a zone, both already checked."""
    return Timetable(parse_cron(expression), zone_of(zone), gap, repeated)


def local_text(at: int, zone: str) -> str:
    """An instant as local time in a zone, to the second, with the offset."""
    return zone_of(zone).text(at // 1_000)
