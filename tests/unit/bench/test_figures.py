from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.bench.figures import Baseline, Figure, Goal, best_of, lateness_of, per_event_us, percentile

MORE = Goal("work", "events/s", 80, 150)
LESS = Goal("work", "ms", 10, 3, more_is_better=False)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 1), (0.01, 1), (0.011, 2), (0.5, 50), (0.501, 51), (0.99, 99), (0.995, 100), (1.0, 100)],
)
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert [percentile([7.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [7.0] * 4


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.001, 1))
def test_enough_values_do_not_exceed_a_percentile(values: list[float], share: float) -> None:
    ordered = sorted(values)

    found = percentile(ordered, share)

    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9


def test_lateness_does_not_depend_on_the_order() -> None:
    lateness = lateness_of([5.0, -0.5, 1.0, 3.0])

    assert (lateness.count, lateness.p50_ms, lateness.p99_ms) == (4, 1.0, 5.0)
    assert (lateness.max_ms, lateness.earliest_ms) == (5.0, -0.5), "an early one shows"


@pytest.mark.parametrize(("value", "verdict"), [(79, "below"), (80, "ok"), (149.9, "ok"), (150, "aim")])
def test_more_is_better_for_a_rate(value: float, verdict: str) -> None:
    assert MORE.verdict(value) == verdict


@pytest.mark.parametrize(("value", "verdict"), [(10.1, "below"), (10, "ok"), (3.1, "ok"), (3, "aim")])
def test_less_is_better_for_a_delay(value: float, verdict: str) -> None:
    assert LESS.verdict(value) == verdict


def test_a_figure_without_a_goal_has_no_verdict() -> None:
    assert Goal("work", "events/s").verdict(1) == ""


def test_the_ratio_is_to_the_first_baseline() -> None:
    figure = Figure(MORE, 50, (Baseline("bare", 200), Baseline("barer", 400)))

    assert figure.ratio == 0.25


@pytest.mark.parametrize("baselines", [(), (Baseline("nothing", 0),)])
def test_without_a_baseline_there_is_no_ratio(baselines: tuple[Baseline, ...]) -> None:
    assert Figure(MORE, 50, baselines).ratio is None


def test_the_best_round_counts_and_lists_all_rounds() -> None:
    first, second = Figure(MORE, 80, (Baseline("bare", 100),)), Figure(MORE, 90, (Baseline("bare", 300),))
    quick, slow = Figure(LESS, 4), Figure(LESS, 9)

    rate, delay = best_of([first, slow, second, quick])

    assert (rate.value, rate.ratio, rate.rounds) == (90, 0.3, (80, 90)), "beside the bare work of its own round"
    assert (delay.value, delay.rounds) == (4, (9, 4))


def test_a_single_round_is_unchanged() -> None:
    assert best_of([Figure(MORE, 80)]) == [Figure(MORE, 80)]


def test_cpu_time_is_shared_out() -> None:
    assert per_event_us(0.5, 100_000) == 5.0
    assert per_event_us(0.5, 0) == 500_000, "no events: no division by zero"
