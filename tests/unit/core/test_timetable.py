"""Cron in zones: every change of the clocks of a decade, and years of dates against another implementation."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise, product, takewhile
from typing import NamedTuple, get_args
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from everbell.core.cron import Cron, parse_cron
from everbell.core.timetable import (
    BLOCK_S,
    Gap,
    Repeated,
    Timetable,
    Zone,
    check_zone,
    local_text,
    timetable_of,
    zone_of,
)
from everbell.errors import InvalidInput

WEEK_S = 7 * 86_400
ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "Europe/London",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Sao_Paulo",
    "America/Santiago",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Asia/Beirut",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Antarctica/Troll",
)


def second(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def walk(timetable: Timetable, after_s: int, until_s: int) -> list[int]:
    found = []
    at, _ = timetable.after(after_s)
    while at is not None and at <= until_s:
        found.append(at)
        at, _ = timetable.after(at)
    return found


def clocks(timetable: Timetable, start: str, end: str) -> list[str]:
    return [local_text(at * 1_000, "Europe/Berlin")[11:] for at in walk(timetable, second(start), second(end))]


# On 2026-03-29 the clocks of Berlin go from 02:00 to 03:00, on 2026-10-25 from 03:00 back to 02:00.
GAP = ("2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00")
REPEATED = ("2026-10-25T00:00:00+02:00", "2026-10-25T12:00:00+01:00")


@pytest.mark.parametrize(
    ("text", "gap", "expected"),
    [
        ("30 2 * * *", "skip", []),
        ("30 2 * * *", "after", ["03:00:00+02:00"]),
        ("*/20 2 * * *", "after", ["03:00:00+02:00"]),
        ("0,30 2,3 * * *", "after", ["03:00:00+02:00", "03:30:00+02:00"]),
        ("0 2,4 * * *", "skip", ["04:00:00+02:00"]),
        ("30 1-3 * * *", "skip", ["01:30:00+01:00", "03:30:00+02:00"]),
    ],
)
def test_a_time_that_does_not_exist(text: str, gap: Gap, expected: list[str]) -> None:
    assert clocks(timetable_of(text, "Europe/Berlin", gap, None), *GAP) == expected


@pytest.mark.parametrize(("text", "zone"), [("30 2 * 3 SUNL", "Europe/Berlin"), ("30 2 * 3 SUN#2", "America/New_York")])
def test_a_time_that_never_exists_is_not_looked_for_in_the_whole_calendar(text: str, zone: str) -> None:
    found, gaps = timetable_of(text, zone, "skip", None).after(second("2026-01-01T00:00:00Z"))
    assert found is None
    assert gaps == 40, "one a year"


def test_a_gap_that_was_skipped_is_reported() -> None:
    timetable = timetable_of("30 2 * * *", "Europe/Berlin", "skip", None)

    assert timetable.after(second("2026-03-28T12:00:00+01:00")) == (second("2026-03-30T02:30:00+02:00"), 1)
    assert timetable.after(second("2026-03-30T12:00:00+02:00"))[1] == 0


@pytest.mark.parametrize(
    ("text", "repeated", "expected"),
    [
        ("30 2 * * *", None, ["02:30:00+02:00"]),
        ("30 2 * * *", "once", ["02:30:00+02:00"]),
        ("30 2 * * *", "twice", ["02:30:00+02:00", "02:30:00+01:00"]),
        ("0,30 2 * * *", "twice", ["02:00:00+02:00", "02:30:00+02:00", "02:00:00+01:00", "02:30:00+01:00"]),
        ("0 1-3 * * *", None, ["01:00:00+02:00", "02:00:00+02:00", "03:00:00+01:00"]),
    ],
)
def test_a_time_that_comes_twice(text: str, repeated: Repeated | None, expected: list[str]) -> None:
    assert clocks(timetable_of(text, "Europe/Berlin", "skip", repeated), *REPEATED) == expected


def test_an_expression_without_hours_rings_in_every_elapsed_hour() -> None:
    timetable = timetable_of("*/15 * * * *", "Europe/Berlin", "skip", None)
    for start, end in (GAP, REPEATED):
        times = walk(timetable, second(start), second(end))
        assert {after - before for before, after in pairwise(times)} == {900}


def test_a_day_that_a_country_left_out() -> None:
    timetable = timetable_of("0 12 * * *", "Pacific/Apia", "skip", None)
    times = walk(timetable, second("2011-12-29T00:00:00-10:00"), second("2012-01-01T00:00:00+14:00"))
    assert [local_text(at * 1_000, "Pacific/Apia")[:10] for at in times] == ["2011-12-29", "2011-12-31"]


class Change(NamedTuple):
    """One change of clocks, which several zones may share."""

    at_s: int
    before_s: int
    after_s: int


@cache
def changes() -> dict[Change, str]:
    """Every change of clocks of a decade, anywhere, with one of the zones that made it."""
    start_s, end_s = second("2020-01-01T00:00:00Z"), second("2031-01-01T00:00:00Z")
    found: dict[Change, str] = {}
    for name in sorted(available_timezones()):
        zone = zone_of(name)
        for week_s in range(start_s, end_s, WEEK_S):
            early, late = week_s, week_s + WEEK_S
            before, after = zone.offset(early), zone.offset(late)
            if before != after:
                while late - early > 1:
                    middle = (early + late) // 2
                    early, late = (middle, late) if zone.offset(middle) == before else (early, middle)
                found.setdefault(Change(late, before, after), name)
    return found


def expected_around(
    change: Change, zone: str, text: str, gap: Gap, repeated: Repeated, start_s: int, end_s: int
) -> Iterator[int]:
    """Brute force: look at the clocks every minute, and let the other implementation judge each local time."""
    meant = set(other_times(text))
    for at_s, minute, fold in shown_around(zone, start_s, end_s):
        rings = minute in meant and (repeated == "twice" or not fold)
        if at_s == change.at_s and gap == "after":
            missing = range(change.at_s + change.before_s, change.at_s + change.after_s, 60)
            rings = rings or any(local_s % 86_400 // 60 in meant for local_s in missing)
        if rings:
            yield at_s


@cache
def shown_around(zone: str, start_s: int, end_s: int) -> list[tuple[int, int, int]]:
    """The minutes that clocks show: the second, the minute of the day, and whether it is there for the second time."""
    info = ZoneInfo(zone)
    seen = ((at_s, datetime.fromtimestamp(at_s, info)) for at_s in range(start_s + 60, end_s + 1, 60))
    return [(at_s, shown.hour * 60 + shown.minute, shown.fold) for at_s, shown in seen]


@cache
def other_times(text: str) -> tuple[int, ...]:
    """The minutes of any day that an expression means."""
    found: list[int] = []
    for at in CronSim(text, datetime(2023, 12, 31, 23, 59, tzinfo=UTC)):
        if at >= datetime(2024, 1, 2, tzinfo=UTC):
            return tuple(found)
        found.append(at.hour * 60 + at.minute)
    raise AssertionError("cron goes on")


@pytest.mark.parametrize("text", ["30 2 * * *", "*/7 0-3,23 * * *", "13 * * * *"])
def test_every_change_of_clocks_of_a_decade(text: str) -> None:
    assert len(changes()) > 400, "there are many zones, and their clocks change twice a year"
    for (change, zone), gap, repeated in product(changes().items(), get_args(Gap), get_args(Repeated)):
        timetable = timetable_of(text, zone, gap, repeated)
        start_s, end_s = change.at_s - 5 * 3_600, change.at_s + 5 * 3_600
        expected = list(expected_around(change, zone, text, gap, repeated, start_s, end_s))
        assert walk(timetable, start_s, end_s) == expected, (zone, change, gap, repeated)
        assert timetable.count(start_s, end_s) == len(expected), (zone, change, gap, repeated)
        assert timetable.latest(start_s, end_s) == (expected[-1] if expected else None), (zone, change, gap, repeated)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("text", ["30 2 * * *", "0 0 L * *", "45 23 * * 0", "15 1,2,3 1-7 3,4,9-11 *"])
def test_years_of_fixed_times_as_debian_has_them(zone: str, text: str) -> None:
    """With hours and minutes, the other implementation follows Debian's cron: after the gap, and once."""
    start = datetime(2016, 1, 1, tzinfo=ZoneInfo(zone))
    expected = take_until_2027(text, start)
    found = walk(timetable_of(text, zone, "after", "once"), int(start.timestamp()), second("2027-01-01T00:00:00Z"))
    assert found == expected


@pytest.mark.parametrize("zone", ZONES)
def test_years_of_hours_that_pass(zone: str) -> None:
    """With six fields the other one rings whenever the clocks show a time that is meant: no gap, and twice."""
    start = datetime(2025, 1, 1, tzinfo=ZoneInfo(zone))
    text = "0 30 */3 * * *"
    expected = take_until_2027(text, start)
    found = walk(timetable_of(text, zone, "skip", "twice"), int(start.timestamp()), second("2027-01-01T00:00:00Z"))
    assert found == expected


def take_until_2027(text: str, start: datetime) -> list[int]:
    end = datetime(2027, 1, 1, tzinfo=UTC)
    found = []
    for at in CronSim(text, start):
        if at > end:
            break
        found.append(int(at.timestamp()))
    # Debian's rule lets two local times of one gap ring at the same instant; that is one occurrence.
    return sorted(set(found))


rules = st.tuples(st.sampled_from(["skip", "after"]), st.sampled_from(["once", "twice", None]))


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["*/10 * * * *", "30 2 * * *", "0 0-6 * * *", "*/15 * * * * *", "0 0 1 * *"]),
    rules,
    st.integers(1_300_000_000, 2_000_000_000),
    st.integers(0, 60),
)
def test_counting_and_the_latest_agree_with_walking(
    zone: str, text: str, rule: tuple[Gap, Repeated | None], start_s: int, steps: int
) -> None:
    timetable = timetable_of(text, zone, *rule)
    times = []
    at_s: int | None = start_s
    for _ in range(steps):
        assert at_s is not None
        at_s, _gaps = timetable.after(at_s)
        assert at_s is not None
        times.append(at_s)
    end_s = times[-1] if times else start_s

    assert times == sorted(set(times))
    assert timetable.count(start_s, end_s) == len(times)
    assert timetable.latest(start_s, end_s) == (times[-1] if times else None)
    assert timetable.latest(start_s, end_s - 1) == (times[-2] if len(times) > 1 else None)


def test_a_year_of_seconds_is_counted_without_walking() -> None:
    timetable = timetable_of("* * * * * *", "Europe/Berlin", "skip", None)
    assert timetable.count(second("2025-06-01T00:00:00Z"), second("2026-06-01T00:00:00Z")) == 365 * 86_400


def test_two_changes_within_a_week_are_both_seen() -> None:
    timetable = timetable_of("*/30 * * * *", "America/Recife", "after", "once")
    start_s, end_s = second("2000-10-01T00:00:00Z"), second("2000-10-20T00:00:00Z")
    for shift_s in range(0, 7 * 86_400, 9_000):
        assert timetable.count(start_s + shift_s, end_s) == len(walk(timetable, start_s + shift_s, end_s))


def test_the_calendar_has_an_end() -> None:
    timetable = Timetable(parse_cron("@daily"), zone_of("Pacific/Kiritimati"), "skip", None)
    assert timetable.after(second("9999-06-01T00:00:00Z")) == (None, 0)
    last = timetable.latest(second("9997-12-01T00:00:00Z"), second("9999-12-31T00:00:00Z"))
    assert last is not None
    assert timetable.after(last) == (None, 0)


def test_every_zone_is_known() -> None:
    names = available_timezones() - {"localtime"}
    assert len(names) > 400
    assert [name for name in sorted(names) if check_zone(name) != name] == []


@pytest.mark.parametrize(
    "name",
    [
        "Europe/Atlantis",
        "",
        "../etc/passwd",
        "/etc/localtime",
        "Europe",
        "UTC\0",
        "+02:00",
        "localtime",
        "right/Europe/Berlin",
        "tzdata.zi",
        "zone.tab",
        "Europe//Berlin",
        "Z" * 5_000,
        "ü",
    ],
)
def test_zones_have_names(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a time zone such as"):
        check_zone(name)


def test_the_cache_of_a_zone_is_bounded_and_does_not_change_answers() -> None:
    fresh = Timetable(parse_cron("0 0 1 * *"), Zone("Europe/Berlin"), "skip", None)
    zone = Zone("Europe/Berlin")
    walked = Timetable(parse_cron("0 0 1 * *"), zone, "skip", None)
    at_s: int | None = 0
    for _ in range(12 * 300):
        assert at_s is not None
        at_s, _ = walked.after(at_s)
    assert len(zone._blocks) <= 256
    again = Timetable(parse_cron("15 2 * * *"), zone, "after", "twice")
    alone = Timetable(parse_cron("15 2 * * *"), Zone("Europe/Berlin"), "after", "twice")
    for start_s in range(8_000_000_000, 8_000_000_000 + 400 * 86_400, 86_400 // 2):
        assert walked.after(start_s) == fresh.after(start_s)
        assert again.after(start_s) == alone.after(start_s)


def slow_enumeration(text: str, zone: str, gap: Gap, repeated: Repeated, start_s: int, end_s: int) -> list[int]:
    """Look at the clocks every minute, and let the other implementation judge each local time."""
    first = datetime.fromtimestamp(start_s - 172_800, UTC).replace(tzinfo=None)
    last = datetime.fromtimestamp(end_s + 172_800, UTC).replace(tzinfo=None)
    meant = set(takewhile(lambda at: at < last, CronSim(text, first)))
    info, found, shown_before = ZoneInfo(zone), [], None
    for at_s in range(start_s - start_s % 60, end_s + 1, 60):
        local = datetime.fromtimestamp(at_s, info)
        shown = local.replace(tzinfo=None, fold=0)
        rings = shown in meant and (repeated == "twice" or not local.fold)
        if gap == "after" and shown_before is not None and shown - shown_before > timedelta(minutes=1):
            rings = rings or any(shown_before < at < shown for at in meant)
        if rings and at_s > start_s:
            found.append(at_s)
        shown_before = shown
    return found


field_texts = [
    st.sampled_from(["0", "30", "*/15", "*/7", "0,59"]),
    st.sampled_from(["*", "0", "1-3", "2", "*/5", "23"]),
    st.sampled_from(["*", "*", "1", "L", "*/9", "25-31"]),
    st.sampled_from(["*", "*", "3,4", "9-11", "2"]),
    st.sampled_from(["*", "*", "0", "1-5", "0L"]),
]


@settings(max_examples=60)
@given(
    st.tuples(*field_texts).map(" ".join),
    st.sampled_from(ZONES),
    st.sampled_from(get_args(Gap)),
    st.sampled_from(get_args(Repeated)),
    st.integers(0, 1_800_000_000),
    st.integers(1, 20),
)
def test_arithmetic_agrees_with_looking_at_the_clocks_every_minute(
    text: str, zone: str, gap: Gap, repeated: Repeated, near_s: int, days: int
) -> None:
    timetable = timetable_of(text, zone, gap, repeated)
    # Around the next change of the clocks, if there is one within a year.
    changes = [stretch.start_s for stretch in zone_of(zone).block(near_s // BLOCK_S)]
    start_s = max(changes[-1] - days * 43_200 - near_s % 86_400, 0)
    start_s -= start_s % 60
    end_s = start_s + days * 86_400
    expected = slow_enumeration(text, zone, gap, repeated, start_s, end_s)

    assert walk(timetable, start_s, end_s) == expected
    assert timetable.count(start_s, end_s) == len(expected)
    assert [timetable.nth(start_s, number + 1) for number in range(len(expected))] == expected


@pytest.mark.parametrize("text", ["0 0 1 * *", "30 2 * 3 SUNL", "0 0 29 2 *", "59 23 L * *"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Africa/Casablanca", "Pacific/Apia"])
def test_half_a_century_is_counted_as_it_is_walked(text: str, zone: str) -> None:
    timetable = timetable_of(text, zone, "after", "twice")
    times = walk(timetable, 0, 1_795_000_000)
    assert timetable.count(0, 1_795_000_000) == len(times)
    assert timetable.latest(0, 1_795_000_000) == times[-1]


@pytest.mark.parametrize("text", ["* * * * * *", "*/7 3 * * MON", "0 0 29 2 *", "15 1,2,3 L 3,4,9-11 5#5"])
def test_a_start_in_1970_costs_no_more_than_a_start_today(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a timetable that has counted half a century once
    timetable = timetable_of(text, "America/New_York", "after", "twice")
    number = timetable.count(0, 1_795_000_000)
    work = 0
    counted_number, counted_offset = Cron.number, Zone.offset

    def number_of(cron: Cron, local_s: int) -> int:
        nonlocal work
        work += 1
        return counted_number(cron, local_s)

    def offset_of(zone: Zone, at_s: int) -> int:
        nonlocal work
        work += 1
        return counted_offset(zone, at_s)

    monkeypatch.setattr(Cron, "number", number_of)
    monkeypatch.setattr(Zone, "offset", offset_of)

    # Then another count, and the time of any number, need a few steps.
    assert timetable.count(0, 1_795_000_000) == number
    timetable.nth(0, number // 2 or 1)
    assert work <= 80


def test_a_time_that_no_longer_exists_is_looked_for_in_a_bounded_number_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timetable = timetable_of("31 2 * 3 SUNL", "Europe/Berlin", "skip", None)
    steps = 0
    counted = Cron.after

    def after(cron: Cron, local_s: int) -> int | None:
        nonlocal steps
        steps += 1
        return counted(cron, local_s)

    monkeypatch.setattr(Cron, "after", after)
    assert timetable.after(second("2026-01-01T00:00:00Z"))[0] is None
    assert steps <= 200
