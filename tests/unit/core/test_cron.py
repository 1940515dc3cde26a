"""Cron expressions, checked against a cron that we did not write."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from cronsim import CronSim
from hypothesis import assume, example, given
from hypothesis import strategies as st

from everbell.core.cron import SHORTHANDS, Cron, parse_cron
from everbell.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_S = int(datetime(2026, 11, 15, 12, 34, 56, tzinfo=UTC).timestamp())


def matches(cron: Cron, after_s: int, limit: int) -> list[int]:
    found: list[int] = []
    at = cron.after(after_s)
    while len(found) < limit and at is not None:
        found.append(at)
        at = cron.after(at)
    return found


def words(text: str, limit: int = 3) -> list[str]:
    times = matches(parse_cron(text), START_S, limit)
    return [(EPOCH + timedelta(seconds=at)).strftime("%Y-%m-%d %H:%M:%S") for at in times]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["2026-11-15 12:35:00", "2026-11-15 12:36:00", "2026-11-15 12:37:00"]),
        ("*/20 * * * * *", ["2026-11-15 12:35:00", "2026-11-15 12:35:20", "2026-11-15 12:35:40"]),
        ("0 9 * * MON-FRI", ["2026-11-16 09:00:00", "2026-11-17 09:00:00", "2026-11-18 09:00:00"]),
        ("0 0 * * sat-sun", ["2026-11-21 00:00:00", "2026-11-22 00:00:00", "2026-11-28 00:00:00"]),
        ("0 0 * * 7", ["2026-11-22 00:00:00", "2026-11-29 00:00:00", "2026-12-06 00:00:00"]),
        ("0 22-2/2 * * *", ["2026-11-15 22:00:00", "2026-11-16 00:00:00", "2026-11-16 02:00:00"]),
        ("0 0 L * *", ["2026-11-30 00:00:00", "2026-12-31 00:00:00", "2027-01-31 00:00:00"]),
        ("0 0 L FEB ?", ["2027-02-28 00:00:00", "2028-02-29 00:00:00", "2029-02-28 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00", "2036-02-29 00:00:00"]),
        ("0 0 ? * MON#2", ["2026-12-14 00:00:00", "2027-01-11 00:00:00", "2027-02-08 00:00:00"]),
        ("0 0 * * FRIL", ["2026-11-27 00:00:00", "2026-12-25 00:00:00", "2027-01-29 00:00:00"]),
        ("0 0 * FEB MON#5", ["2044-02-29 00:00:00", "2072-02-29 00:00:00", "2112-02-29 00:00:00"]),
        ("0 0 13 * FRI", ["2026-11-20 00:00:00", "2026-11-27 00:00:00", "2026-12-04 00:00:00"]),
        ("0 0 */2 * MON", ["2026-11-23 00:00:00", "2026-12-07 00:00:00", "2026-12-21 00:00:00"]),
        ("5/25 0,12 1,15 jan,jul *", ["2027-01-01 00:05:00", "2027-01-01 00:30:00", "2027-01-01 00:55:00"]),
        ("007 */08 * * *", ["2026-11-15 16:07:00", "2026-11-16 00:07:00", "2026-11-16 08:07:00"]),
        ("@hourly", ["2026-11-15 13:00:00", "2026-11-15 14:00:00", "2026-11-15 15:00:00"]),
        ("@Weekly", ["2026-11-22 00:00:00", "2026-11-29 00:00:00", "2026-12-06 00:00:00"]),
    ],
)
def test_common_expressions(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields; there are five"),
        ("* * * * * * *", "has 7 fields"),
        ("60 * * * *", "'60' is not a minute (0 to 59)"),
        ("* 24 * * *", "'24' is not a hour"),
        ("* * 0 * *", "'0' is not a day of the month (1 to 31)"),
        ("* * * 13 *", "'13' is not a month (1 to 12, or JAN to DEC)"),
        ("* * * * 8", "'8' is not a day of the week (0 to 7, or SUN to SAT)"),
        ("* * * * MONDAY", "'MONDAY' is not a day of the week"),
        ("*/0 * * * *", "has no step of 1 to 59 minutes"),
        ("*/90 * * * *", "for other intervals there is repeat.every"),
        ("1- * * * *", "'' is not a minute"),
        ("1,,2 * * * *", "'' is not a minute"),
        ("-1 * * * *", "'' is not a minute"),
        ("\u0663 * * * *", "is not a minute"),
        ("9" * 200 + " * * * *", "is not a minute"),
        ("0000000099 * * * *", "'0000000099' is not a minute (0 to 59)"),
        ("000000099 * * * *", "'000000099' is not a minute (0 to 59)"),
        ("0-0000000099 * * * *", "'0000000099' is not a minute (0 to 59)"),
        ("*/0000000190 * * * *", "has no step of 1 to 59 minutes"),
        ("*/000000190 * * * *", "has no step of 1 to 59 minutes"),
        ("0 0 * * L", "write FRIL"),
        ("0 0 * * MON#6", "1 to 5"),
        ("0 0 15W * *", "'15W' is not a day of the month"),
        ("@reboot", "is not known; there are @yearly"),
        ("0 0 30 2 *", "never matches: no such month has a day 30"),
        ("0 0 31 4,6,9,11 *", "never matches: no such month has a day 31"),
        ("0 0 30,31 FEB ?", "never matches"),
        ("0 0 */30 2 MON#2", "never matches: no day of such a month is both"),
        ("0 0 */30 * MON#2", "never matches: no day of such a month is both"),
        ("* " * 200, "is longer than 256 characters"),
    ],
)
def test_an_expression_that_is_invalid_or_never_matches_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_cron(text)
    assert complaint in refused.value.reason
    assert refused.value.field == "repeat.cron"


def test_a_day_that_never_comes_is_harmless_if_a_weekday_may_match() -> None:
    assert words("0 0 30 2 MON", 1) == ["2027-02-01 00:00:00"]


@pytest.mark.parametrize("weekday", range(7))
def test_an_expression_that_matches_once_in_many_years_is_accepted(weekday: int) -> None:
    (found,) = words(f"0 0 */28 FEB {weekday}#5", 1)
    assert found.endswith("-02-29 00:00:00")


@pytest.mark.parametrize("name", SHORTHANDS)
def test_a_shorthand_equals_its_expression(name: str) -> None:
    assert words(name, 10) == words(SHORTHANDS[name], 10)


def test_the_calendar_has_an_end() -> None:
    cron = parse_cron("0 0 1 1 *")
    assert cron.after(int(datetime(9998, 6, 1, tzinfo=UTC).timestamp())) is None


# Everything that both implementations read the same way. The other one has no ranges over the end.
def field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    ordered = st.tuples(value, value).map(sorted)
    step = st.integers(1, high - low)
    item = st.one_of(
        value.map(str),
        ordered.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.tuples(ordered, step).filter(lambda drawn: drawn[0][0] < drawn[0][1]).map(_stepped),
    )
    listed = st.lists(item, min_size=1, max_size=3).map(",".join)
    return st.just("*") | step.map("*/{}".format) | listed


def _stepped(drawn: tuple[list[int], int]) -> str:
    (first, last), step = drawn
    return f"{first}-{last}/{step}"


month_days = field(1, 31) | st.just("L") | st.integers(1, 28).map("{},L".format)
weekdays = (
    field(0, 6)
    | st.integers(0, 7).map("{}L".format)
    | st.tuples(st.integers(0, 7), st.integers(1, 5)).map(lambda drawn: f"{drawn[0]}#{drawn[1]}")
    | st.sampled_from(["MON-FRI", "SUN", "TUE,THU#3"])
)
expressions = st.one_of(
    st.tuples(field(0, 59), field(0, 23), month_days, field(1, 12), weekdays),
    st.tuples(field(0, 59), field(0, 59), field(0, 23), month_days, field(1, 12), weekdays),
).map(" ".join)
moments = st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def read(text: str) -> Cron | None:
    """An expression as it is drawn above can be read; but it may never match."""
    try:
        return parse_cron(text)
    except InvalidInput as refused:
        if "never matches" not in refused.reason:
            raise
        return None


@given(expressions, moments)
@example("0 0 1 1 *", datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC))
def test_the_next_match_agrees_with_another_implementation(text: str, moment: datetime) -> None:
    if (cron := read(text)) is None:
        return
    moment = moment.replace(microsecond=0)
    expected = [int(at.timestamp()) for at in islice(CronSim(text, moment), 20)]
    assert matches(cron, int(moment.timestamp()), len(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0 0 * * *",
        "30 6 1,15 * *",
        "0 0 L * *",
        "15 */6 * * MON#1,FRIL".replace("FRIL", "5L"),
        "0 12 29 2 *",
        "0 0 31 * 2",
        "7 3 */10 */5 *",
        "0 0 * 2 0#5",
    ],
)
def test_matches_over_decades_agree_with_another_implementation(text: str) -> None:
    start, end = datetime(1995, 1, 1, tzinfo=UTC), datetime(2035, 1, 1, tzinfo=UTC)
    expected = []
    for at in CronSim(text, start):
        if at >= end:
            break
        expected.append(int(at.timestamp()))
    found = matches(parse_cron(text), int(start.timestamp()), len(expected) + 1)
    assert found[: len(expected)] == expected
    assert found[-1] >= end.timestamp()


@given(expressions, moments, st.integers(0, 40))
def test_counting_is_the_same_as_walking(text: str, moment: datetime, steps: int) -> None:
    if (cron := read(text)) is None:
        return
    start_s = int(moment.timestamp())
    walked = matches(cron, start_s, steps)
    assume(len(walked) == steps)
    end_s = walked[-1] if walked else start_s
    first = cron.number(start_s)
    assert cron.number(end_s) - first == steps
    assert [cron.match(first + step) for step in range(steps)] == walked
    if steps:
        assert cron.number(end_s - 1) - first == steps - 1


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidInput):
        parse_cron(text)
