from __future__ import annotations

import pytest

from everbell.bench.figures import Baseline, Figure, Goal, Lateness
from everbell.bench.table import HEADINGS, lines_of, number, row_of

RATE = Figure(
    Goal("bulk ingest", "events/s", 80_000, 150_000), 98_765.4, (Baseline("bare RocksDB", 200_000),), 9.87, 123.4
)
LATE = Figure(
    Goal("lateness p99", "ms", 10, 3, more_is_better=False),
    2.345,
    lateness=Lateness(100, 0.9, 2.345, 17.0, 0.1),
    notes=("none was early",),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (0.5, "0.5"),
        (2.345, "2.35"),
        (10, "10"),
        (17.26, "17.3"),
        (400, "400"),
        (98_765.4, "98,765"),
    ],
)
def test_a_number_has_as_many_digits_as_mean_something(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_rate_stands_beside_its_goal_and_the_bare_work() -> None:
    assert row_of(RATE) == (
        *("bulk ingest", "98,765 events/s", "80,000", "150,000", "ok"),
        *("200,000", "0.49", "9.9", "123", ""),
    )


def test_lateness_has_its_percentiles() -> None:
    assert row_of(LATE) == ("lateness p99", "2.35 ms", "10", "3", "aim", "", "", "", "", "0.9 / 2.35 / 17")


def test_columns_line_up_and_notes_follow() -> None:
    heading, rate, late, gap, *notes = lines_of([RATE, LATE])

    end = heading.index("MEASURED") + len("MEASURED")
    assert rate[:end].endswith("98,765 events/s")
    assert late[:end].endswith("2.35 ms")
    assert heading.split("  ")[0] == HEADINGS[0]
    assert gap == ""
    assert notes == [
        "bulk ingest:",
        "  bare: bare RocksDB, 200,000 events/s",
        "lateness p99:",
        "  none was early",
    ]
