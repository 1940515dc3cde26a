"""Tallies: counters by tenant and target that grow for ever, in memory that does not."""

from __future__ import annotations

import random

import pytest

from everbell.engine import tally as module
from everbell.engine.tally import (
    BOUNDS_MS,
    DELIVERED,
    DURATIONS,
    FAILED,
    LATENESS,
    SCHEDULED,
    SIZE,
    TALLIES_MAX,
    TENANTS_MAX,
    Tallies,
    durations_in,
    lateness_in,
    percentile,
)


def test_attempts_are_counted_with_their_lateness_and_duration() -> None:
    tally = Tallies().of("shop", "queue:mail")
    tally.count_started(4, 3)
    tally.count_ended(DELIVERED, 70, 2)
    tally.count_ended(FAILED, 10**9, 1)

    assert lateness_in(tally.counts)[BOUNDS_MS.index(5)] == 3
    assert durations_in(tally.counts)[BOUNDS_MS.index(100)] == 2
    assert durations_in(tally.counts)[-1] == 1
    assert (tally.counts[DELIVERED], tally.counts[FAILED]) == (2, 1)


def test_the_last_minute_forgets_older_counts() -> None:
    tallies = Tallies()
    tally = tallies.of("shop", "queue:mail")
    tally.counts[DELIVERED] = 5
    tallies.sample()
    tally.counts[DELIVERED] = 7
    assert tally.last_minute()[DELIVERED] == 7, "all of it is younger than a minute"
    for _ in range(5):
        tallies.sample()
    assert tally.last_minute()[DELIVERED] == 2
    tallies.sample()
    assert tally.last_minute()[DELIVERED] == 0


def test_a_sample_has_the_news_of_each_tenant() -> None:
    tallies = Tallies()
    tallies.of("shop", "queue:mail").counts[DELIVERED] = 3
    tallies.of("shop", "queue:sms").counts[DELIVERED] = 4
    tallies.of("bank").counts[SCHEDULED] = 1
    news = tallies.sample()
    assert {tenant: (row[SCHEDULED], row[DELIVERED]) for tenant, row in news.items()} == {
        "shop": (0, 7),
        "bank": (1, 0),
    }
    assert tallies.sample() == {}


def test_memory_is_bounded_and_no_count_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_MAX", 3)
    tallies, chance, counted, sampled = Tallies(), random.Random(7), 0, 0
    for _ in range(50):
        for _ in range(500):
            tenant, group = f"t{chance.randrange(200)}", f"queue:q{chance.randrange(50)}"
            tallies.of(tenant, group).counts[DELIVERED] += 1
            counted += 1
        sampled += sum(row[DELIVERED] for row in tallies.sample().values())
        names = [(tenant, group) for tenant, group, _ in tallies.items()]
        assert len(names) <= TALLIES_MAX + TENANTS_MAX
        assert len({tenant for tenant, _ in names}) <= TENANTS_MAX + 1
        assert tallies.total()[DELIVERED] == counted
        assert sampled == counted, "a tally that makes room is no news"


def test_a_tally_that_made_room_begins_again_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_MAX", 2)
    tallies = Tallies()
    tallies.of("shop", "queue:mail").counts[DELIVERED] = 3
    for _ in range(5):
        tallies.sample()
    assert [(tenant, group) for tenant, group, _ in tallies.items()] == [("", "")]
    assert tallies.of("", "").counts[DELIVERED] == 3
    assert tallies.of("shop", "queue:mail").counts == [0] * SIZE


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([1], 0.5, 1), ([1, 1, 90], 0.5, 1), ([1, 1, 90], 0.99, 100), ([10**9], 0.5, BOUNDS_MS[-1])],
)
def test_percentiles_are_upper_bounds(values: list[int], share: float, expected: int | None) -> None:
    tally = Tallies().of("shop")
    for value in values:
        tally.count_started(value, 1)
    assert percentile(tally.counts[LATENESS:DURATIONS], share) == expected
