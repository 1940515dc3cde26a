"""Timetables: a cron expression in a time zone, and its occurrences when the clocks change.

Zones come from the IANA database (`zoneinfo`). Where clocks go forward, some local times do not exist (a gap):
`skip` leaves them out, `after` rings once at the first instant after the gap. Where clocks go back, some local times
occur twice (repeated): `once` rings at the first, `twice` at both. An expression that names no hours (`*/5 * * * *`)
means elapsed time, so without an explicit rule it rings in both hours; any other rings once.

Instants in this module are seconds since 1970 UTC. No zone changes within a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
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
_END_S = (INSTANT_MAX - 7 * DAY_MS) // 1_000  # Where the last block ends.
_ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*", re.ASCII)
# Entries beside the zones: the machine's own zone, and zones that count leap seconds, which instants do not.
_NOT_ZONES = ("localtime", "posixrules", "posix/", "right/")
# Clocks have never changed twice within this time and a day. They have within a week, in Recife in 2000.
_STRIDE_S = 4 * 86_400
_STRIDE = timedelta(seconds=_STRIDE_S)
_USUAL_S = 900  # Nearly all changes are at a quarter of an hour UTC.
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock without a zone.
BLOCK_S = 1 << 25  # A little more than a year.
_BLOCKS_MAX = 256  # The limit for each zone: more than two centuries.
_OFFSETS_S = 2 * 86_400  # More than any two offsets differ by.
_GAPS_MAX = 40
"""The limit of consecutive gaps without a match. Clocks go forward once a year, and dates and weekdays combine in all
ways within forty years. So after this many gaps the expression names a time that never exists, such as half past two on
the last Sunday of March. Searching the whole calendar would take half a second.
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


class Stretch(Struct, frozen=True, gc=False):
    """A period without a clock change: from `start_s` until before `end_s`."""

    start_s: int
    end_s: int
    offset: int
    """How many seconds the clocks are ahead of UTC."""
    before: int
    """The offset until the start. It equals `offset` where a block ends and the clocks do not change."""

    def local_start_s(self, twice: bool) -> int:
        """The first local time that counts. Without `twice`, a time that the clocks show again does not."""
        return self.start_s + (self.offset if twice else max(self.offset, self.before))


class Zone:
    """The clocks of a zone, explored in blocks of about a year, which all timetables of the zone share."""

    def __init__(self, name: str) -> None:
        self._info = ZoneInfo(name)
        self._blocks: dict[int, list[Stretch]] = {}

    def stretch(self, at_s: int) -> Stretch:
        """The period without a clock change around an instant."""
        stretches = self.block(at_s // BLOCK_S)
        for stretch in stretches:
            if at_s < stretch.end_s:
                break
        return stretch

    def block(self, number: int) -> list[Stretch]:
        """The periods without a clock change in the block that begins at `number * BLOCK_S`."""
        known = self._blocks.get(number)
        if known is None:
            if len(self._blocks) >= _BLOCKS_MAX:
                self._blocks.clear()
            known = self._blocks[number] = list(self._explore(number * BLOCK_S, min((number + 1) * BLOCK_S, _END_S)))
        return known

    def _explore(self, start_s: int, end_s: int) -> Iterator[Stretch]:
        before, offset = self.offset(start_s - 1), self.offset(start_s)
        utcoffset, last_s = self._info.utcoffset, end_s - 1
        seen_s = start_s
        while True:
            # Steps along the wall clock cost a third of steps along instants. A time that the clocks leave out has the
            # offset from before the change, so `seen_s` may be up to a day after the change.
            ahead, same = _WALL_EPOCH + timedelta(seconds=seen_s + offset), timedelta(seconds=offset)
            while seen_s < last_s and utcoffset(ahead := ahead + _STRIDE) == same:
                seen_s += _STRIDE_S
            ahead_s = min(seen_s + _STRIDE_S, last_s)
            if self.offset(ahead_s) == offset:
                break
            change_s = self._change_between(max(seen_s - 86_400, start_s), ahead_s, offset)
            yield Stretch(start_s, change_s, offset, before)
            start_s = seen_s = change_s
            before, offset = offset, self.offset(change_s)
        yield Stretch(start_s, end_s, offset, before)

    def _change_between(self, early_s: int, late_s: int, before: int) -> int:
        """The instant of the only change later than `early_s` and not later than `late_s`."""
        while late_s - early_s > 1:
            middle_s = (early_s + late_s) // 2
            if late_s - early_s > 2 * _USUAL_S:
                middle_s -= middle_s % _USUAL_S
            elif self.offset(late_s - 1) == before:
                break
            early_s, late_s = (middle_s, late_s) if self.offset(middle_s) == before else (early_s, middle_s)
        return late_s

    def text(self, at_s: int) -> str:
        """The local time at an instant, with the offset."""
        return datetime.fromtimestamp(at_s, self._info).isoformat()

    def offset(self, at_s: int) -> int:
        """How many seconds the clocks are ahead of UTC at an instant."""
        ahead = datetime.fromtimestamp(at_s, self._info).utcoffset()
        assert ahead is not None, "every zone has an offset"
        return ahead.days * 86_400 + ahead.seconds


class Timetable:
    """The occurrences of an expression in a zone.

    Inside a stretch they are the matches of the expression, shifted by the offset. A stretch that begins with a gap may
    have one more, at its start.
    """

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
        local_s = at_s + stretch.offset
        if stretch.before > stretch.offset:
            local_s = max(local_s, stretch.local_start_s(self._twice) - 1)
        gaps = 0
        while gaps < _GAPS_MAX and (found := self._cron.after(local_s)) is not None:
            next_s = found - stretch.offset
            if next_s > _LAST_S:
                return None, gaps
            if next_s < stretch.end_s:
                return next_s, gaps
            stretch = self._zone.stretch(stretch.end_s)
            local_s = stretch.local_start_s(self._twice) - 1
            if stretch.before < stretch.offset and found <= local_s:
                if self._after_gap:
                    return stretch.start_s, gaps
                gaps += 1
            elif next_s - _OFFSETS_S >= stretch.end_s and not self._shows_again(stretch):
                # Nothing matches before `found`, so the stretches until shortly before it need no search.
                stretch, local_s = self._zone.stretch(next_s - _OFFSETS_S), found - 1
        return None, gaps

    def _shows_again(self, stretch: Stretch) -> bool:
        """Whether local times from before the stretch come again in it, and count."""
        return self._twice and stretch.offset < stretch.before

    def count(self, after_s: int, until_s: int) -> int:
        """The number of occurrences later than `after_s` and not later than `until_s`.

        The counts of whole blocks are cached, so half a century costs little more than a day.
        """
        until_s = min(until_s, _LAST_S)
        if after_s >= until_s:
            return 0
        first, last = after_s // BLOCK_S, until_s // BLOCK_S
        whole = sum(_count_block(self, number) for number in range(first, last))
        return whole + self._count_in_block(until_s) - self._count_in_block(after_s)

    def nth(self, after_s: int, number: int) -> int:
        """The occurrence number `number` (from 1 on) later than `after_s`. It must exist."""
        block = after_s // BLOCK_S
        number += self._count_in_block(after_s)
        while number > (inside := _count_block(self, block)):
            number -= inside
            block += 1
        for stretch in self._zone.block(block):
            inside = self._count_in(stretch, stretch.end_s - 1)
            if number <= inside:
                break
            number -= inside
        if self._rings_after_gap(stretch):
            if number == 1:
                return stretch.start_s
            number -= 1
        before = self._cron.number(stretch.local_start_s(self._twice) - 1)
        found = self._cron.match(before + number - 1)
        assert found is not None, "the occurrence exists"
        return found - stretch.offset

    def latest(self, after_s: int, until_s: int) -> int | None:
        """The last occurrence later than `after_s` and not later than `until_s`."""
        number = self.count(after_s, until_s)
        return self.nth(after_s, number) if number else None

    def _count_in_block(self, until_s: int) -> int:
        """The number of occurrences in the block of an instant, up to and including that instant."""
        total = 0
        for stretch in self._zone.block(until_s // BLOCK_S):
            if until_s < stretch.end_s:
                return total + self._count_in(stretch, until_s)
            total += self._count_in(stretch, stretch.end_s - 1)
        return total

    def _count_in(self, stretch: Stretch, until_s: int) -> int:
        """The number of occurrences in a stretch, up to and including an instant of it."""
        number = self._cron.number
        local_s = stretch.local_start_s(self._twice) - 1
        inside = max(number(until_s + stretch.offset) - number(local_s), 0)
        return inside + self._rings_after_gap(stretch)

    def _rings_after_gap(self, stretch: Stretch) -> bool:
        """Whether an occurrence at the start of the stretch stands for local times that the clocks left out."""
        if not self._after_gap or stretch.before >= stretch.offset:
            return False
        number, local_s = self._cron.number, stretch.start_s + stretch.offset
        before_gap = number(stretch.start_s + stretch.before - 1)
        return before_gap < number(local_s - 1) == number(local_s)


@lru_cache(maxsize=16_384)
def _count_block(timetable: Timetable, number: int) -> int:
    return timetable._count_in_block((number + 1) * BLOCK_S - 1)


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
