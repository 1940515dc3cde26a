"""Instants and durations: round trips, the forms people write, and never rounded down."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.time import (
    DAY_MS,
    DURATION_MAX_MS,
    HOUR_MS,
    INSTANT_MAX,
    MINUTE_MS,
    TEXT_LENGTH_MAX,
    _parse_duration_text,
    check_instant,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from everbell.errors import InvalidInput

instants = st.integers(0, INSTANT_MAX)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(instants)
def test_an_instant_comes_back_as_it_was_written(at: int) -> None:
    assert parse_instant(format_instant(at)) == at


@given(instants, instants)
def test_written_instants_sort_like_the_instants(one: int, other: int) -> None:
    assert (format_instant(one) < format_instant(other)) == (one < other)


@given(st.integers(DAY_MS, INSTANT_MAX - 2 * DAY_MS), st.integers(-23 * 60, 23 * 60))
def test_an_instant_is_the_same_with_any_offset(at: int, minutes: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    text = (EPOCH + timedelta(milliseconds=at)).astimezone(zone).isoformat(timespec="milliseconds")

    assert parse_instant(text) == at


@given(st.integers(0, 4_000_000_000), st.text("0123456789", min_size=1, max_size=18))
def test_a_fraction_is_never_rounded_down(seconds: int, digits: str) -> None:
    whole = f"{EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"
    exact_ms = (seconds + Fraction(int(digits), 10 ** len(digits))) * 1_000

    at = parse_instant(f"{whole}.{digits}Z")

    assert exact_ms <= at < exact_ms + 1


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:01Z", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T23:59:00+23:59", 0),
        ("1970-01-01T00:00:00-23:59", 23 * HOUR_MS + 59 * MINUTE_MS),
        ("1970-01-01T00:00:00.0001Z", 1),
        ("1970-01-01T00:00:00.0000000000001Z", 1),
        ("1970-01-01T00:00:00.001000000Z", 1),
        ("9999-12-31T23:59:59.999Z", INSTANT_MAX),
        ("2024-02-29T12:00:00.500Z", 1_709_208_000_500),
    ],
)
def test_forms_of_an_instant(text: str, at: int) -> None:
    assert parse_instant(text) == at


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-20T10:00:00", "no offset"),
        ("2026-11-20T10:00", "no offset"),
        ("2026-02-30T10:00:00Z", "calendar"),
        ("2026-11-20T25:00:00Z", "calendar"),
        ("2026-02-30T10:00:00.000Z", "calendar"),
        ("0001-01-01T00:00:00+23:00", "1970"),
        ("1969-12-31T23:59:59.999Z", "1970"),
        ("9999-12-31T23:59:59.9999Z", "9999"),
        ("2026-11-20T10:00:00+05:60", "RFC 3339 time with an offset"),
        ("2026-11-20T10:00:00.000-05:99", "RFC 3339 time with an offset"),
        ("2026-11-20T10:00:00+24:00", "RFC 3339 time with an offset"),
        ("2026-11-20T10:00:00-30:00", "RFC 3339 time with an offset"),
        ("2026-11-20T10+01:00.000Z", "RFC 3339"),
        ("20261120T1000+00:00.000Z", "RFC 3339"),
        ("2026-11-20T1000Z:00.000Z", "RFC 3339"),
        ("2026-11-20T24:00:30.500Z", "calendar"),
        ("2026-11-20T10:00:60.000Z", "calendar"),
        ("2026-W47-5T10:00:00.000Z", "RFC 3339"),
        ("tomorrow", "RFC 3339"),
        ("", "RFC 3339"),
        ("٢٠٢٦-11-20T10:00:00Z", "RFC 3339"),
    ],
)
def test_an_invalid_instant_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        parse_instant(text, "until")

    assert refused.value.field == "until"


@pytest.mark.parametrize("end", ["", "Z", "+02:00"])
def test_a_message_about_an_instant_that_is_too_long_quotes_only_its_beginning(end: str) -> None:
    with pytest.raises(InvalidInput, match="… is longer than 64 characters; write 2026-11-20T10:00:00Z") as refused:
        parse_instant("2026-11-20T10:00:00." + "0" * 1_000_000 + end, "until")

    assert refused.value.field == "until"
    assert len(str(refused.value)) < 200


def test_a_message_quotes_a_whole_instant_without_an_offset() -> None:
    text = "2026-11-20T10:00:00.".ljust(TEXT_LENGTH_MAX, "0")

    with pytest.raises(InvalidInput, match=f"'{text}' has no offset"):
        parse_instant(text)


@given(
    st.integers(0, INSTANT_MAX),
    st.lists(st.tuples(st.integers(0, 23), st.sampled_from("0123456789-:.+TZW ٣")), max_size=3),
)
def test_the_fast_path_of_an_instant_agrees_with_the_slow_one(at: int, changes: list[tuple[int, str]]) -> None:
    letters = list(format_instant(at))
    for place, letter in changes:
        letters[place] = letter
    text = "".join(letters)

    def parsed(text: str) -> int | None:
        try:
            return parse_instant(text)
        except InvalidInput:
            return None

    assert parsed(text) == parsed(f"{text[:-1]}0{text[-1]}"), "with another digit it takes the long way"


@given(st.text(max_size=40))
def test_any_text_is_an_instant_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert 0 <= parse_instant(text) <= INSTANT_MAX


@pytest.mark.parametrize("at", [-1, INSTANT_MAX + 1])
def test_instants_beyond_the_years_1970_to_9999_are_refused(at: int) -> None:
    with pytest.raises(InvalidInput):
        check_instant(at)


@given(st.integers(0, DURATION_MAX_MS))
def test_a_duration_comes_back_as_it_was_written(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.integers(0, DURATION_MAX_MS))
def test_a_number_is_seconds(duration_ms: int) -> None:
    assert parse_duration(duration_ms // 1_000) == duration_ms // 1_000 * 1_000


@given(st.integers(0, 10_000_000))
def test_a_float_of_seconds_means_its_decimal_text(millis: int) -> None:
    assert parse_duration(millis / 1_000) == millis


@pytest.mark.parametrize(
    ("value", "duration_ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("1h30m", HOUR_MS + 30 * MINUTE_MS),
        ("1.5h", HOUR_MS + 30 * MINUTE_MS),
        ("2w", 14 * DAY_MS),
        ("0.1ms", 1),
        ("0s", 0),
        ("PT20M", 20 * MINUTE_MS),
        ("pt0.0001s", 1),
        ("P1W2DT3H4M5.5S", 9 * DAY_MS + 3 * HOUR_MS + 4 * MINUTE_MS + 5_500),
        ("3 days", 3 * DAY_MS),
        ("1 Hour 30 Minutes", HOUR_MS + 30 * MINUTE_MS),
        ("1.5weeks", 10 * DAY_MS + 12 * HOUR_MS),
        (0.29, 290),
        (0.0001, 1),
        (7, 7_000),
    ],
)
def test_forms_of_a_duration(value: str | float, duration_ms: int) -> None:
    assert parse_duration(value) == duration_ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "P",
        "PT",
        "P1DT",
        "1 h",
        "1h 30m",
        "-5s",
        "-PT5S",
        "5",
        "5 minuteses",
        "5 months",
        "minutes 5",
        "1e3s",
        "٣s",
        "2000000w",
        "P999999999W",
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        1e18,
    ],
)
def test_an_invalid_duration_is_refused(value: str | float) -> None:
    with pytest.raises(InvalidInput):
        parse_duration(value, "expires")


@pytest.mark.parametrize("part", ["0s", "0", "x"])
def test_a_message_about_a_duration_that_is_too_long_quotes_only_its_beginning(part: str) -> None:
    reads = _parse_duration_text.cache_info().misses

    with pytest.raises(InvalidInput, match='… is longer than 64 characters; write "250ms"') as refused:
        parse_duration("3600s" + part * 1_000_000, "expires")

    assert refused.value.field == "expires"
    assert len(str(refused.value)) < 250
    assert _parse_duration_text.cache_info().misses == reads


def test_a_duration_may_have_many_parts() -> None:
    assert parse_duration("1s" * (TEXT_LENGTH_MAX // 2)) == TEXT_LENGTH_MAX // 2 * 1_000


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert 0 <= parse_duration(text) <= DURATION_MAX_MS
