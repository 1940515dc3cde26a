"""Times for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.cli.timestamps import exact, millis, relative, roughly

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("away", "text"),
    [
        (timedelta(0), "now"),
        (timedelta(milliseconds=499), "now"),
        (timedelta(milliseconds=-499), "now"),
        (timedelta(milliseconds=500), "in 1s"),
        (timedelta(milliseconds=-999), "1s ago"),
        (timedelta(seconds=5), "in 5s"),
        (timedelta(seconds=-5), "5s ago"),
        (timedelta(milliseconds=59_600), "in 1m"),
        (timedelta(minutes=20, milliseconds=-3), "in 20m"),
        (timedelta(hours=2, minutes=3), "in 2h 3m"),
        (timedelta(hours=2, seconds=10), "in 2h"),
        (timedelta(days=400, hours=5, minutes=29), "in 400d 5h"),
        (timedelta(days=-1, minutes=-1), "1d ago"),
    ],
)
def test_how_far_away_a_moment_is(away: timedelta, text: str) -> None:
    assert relative(NOW + away, millis(NOW)) == text


def test_short_durations_are_told_in_milliseconds() -> None:
    assert [roughly(ms) for ms in (0, 7, 999, 1_000)] == ["0ms", "7ms", "999ms", "1s"]


@given(st.integers(min_value=1_000, max_value=10**13))
def test_a_rough_duration_is_nearly_right(duration_ms: int) -> None:
    sizes = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
    parts = roughly(duration_ms).split()
    told_ms = sum(int(part[:-1]) * sizes[part[-1]] for part in parts)
    assert abs(told_ms - duration_ms) <= max(500, duration_ms // 24)


def test_exact_times_are_in_utc() -> None:
    assert exact(NOW) == "2026-11-20 10:00:00 UTC"
    assert exact(NOW + timedelta(milliseconds=7)) == "2026-11-20 10:00:00.007 UTC"
