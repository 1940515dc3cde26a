"""Rows that commit in another order than that of their numbers are found, each once, and no range is kept for ever."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from everbell.outbox.unseen import RANGES_MAX, Unseen


@dataclass
class Database:
    """Transactions that take an id, then numbers, and commit or roll back at any time."""

    ids: int = 0
    numbers: int = 0
    running: dict[int, list[int]] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)

    def begin(self) -> int:
        self.ids += 1
        self.running[self.ids] = []
        return self.ids

    def add(self, transaction: int) -> None:
        self.numbers += 1
        self.running[transaction].append(self.numbers)

    def end(self, transaction: int, *, commits: bool) -> list[int]:
        numbers = self.running.pop(transaction)
        self.rows.update(numbers if commits else ())
        return numbers if commits else []

    @property
    def smallest_running(self) -> int:
        """As in a snapshot: when nothing runs, the next id after the last that has ended."""
        return min(self.running, default=self.ids + 1)

    def look(self, unseen: Unseen, limit: int) -> list[int]:
        """The first rows in the unseen ranges; the collector notes them and removes them."""
        ranges = unseen.ranges
        found = sorted(row for row in self.rows if any(low <= row <= high for low, high, _ in ranges))[:limit]
        unseen.see(found, self.smallest_running)
        self.rows.difference_update(found)
        return found


@pytest.mark.parametrize("seed", range(60))
def test_every_committed_row_is_seen_once_in_any_order_of_commits(seed: int) -> None:
    dice = random.Random(seed)
    database, unseen = Database(), Unseen()
    committed: set[int] = set()
    seen: list[int] = []
    for _ in range(400):
        step = dice.random()
        if step < 0.2:
            database.begin()
        elif step < 0.6 and database.running:
            database.add(dice.choice(list(database.running)))
        elif step < 0.8 and database.running:
            # One transaction runs for long: the first is chosen rarely.
            candidates = list(database.running)[1:] or list(database.running)
            committed.update(database.end(dice.choice(candidates), commits=dice.random() < 0.8))
        elif step < 0.95:
            seen += database.look(unseen, dice.choice([1, 3, 100]))
        else:
            # The collector's own transaction, as when it removes rows.
            own = database.begin()
            unseen.put_limit(own)
            database.end(own, commits=True)
    for transaction in list(database.running):
        committed.update(database.end(transaction, commits=True))
    while found := database.look(unseen, 100):
        seen += found

    assert sorted(seen) == sorted(committed)


def test_a_range_stays_while_a_transaction_runs_that_may_fill_it_and_is_forgotten_afterwards() -> None:
    database, unseen = Database(), Unseen()
    slow = database.begin()
    database.add(slow)
    quick = database.begin()
    database.add(quick)
    database.end(quick, commits=True)
    assert database.look(unseen, 10) == [2]
    own = database.begin()
    unseen.put_limit(own)
    database.end(own, commits=True)
    assert database.look(unseen, 10) == []
    assert len(unseen.ranges) == 2

    database.end(slow, commits=False)

    assert database.look(unseen, 10) == []
    assert unseen.ranges == [(3, 2**63 - 1, None)]


def test_a_range_without_a_limit_is_kept() -> None:
    unseen = Unseen()
    unseen.see([5], running=100)
    unseen.see([], running=1_000)
    assert unseen.needs_limit
    assert unseen.lowest == 0


def test_rows_are_looked_for_again_from_a_number_on() -> None:
    unseen = Unseen()
    unseen.see([0, 1, 2, 5, 9], running=1)
    assert [(low, high) for low, high, _ in unseen.ranges[:-1]] == [(3, 4), (6, 8)]
    unseen.look_again(4)
    assert [(low, high) for low, high, _ in unseen.ranges[:-1]] == [(3, 9)]
    unseen.see([5, 9], running=1)
    assert [(low, high) for low, high, _ in unseen.ranges[:-1]] == [(3, 4), (6, 8)]


def test_the_number_of_ranges_is_bounded_and_no_unseen_number_is_left_out() -> None:
    unseen = Unseen()
    unseen.see(range(1, 8 * RANGES_MAX, 2), running=1)
    ranges = unseen.ranges
    assert len(ranges) <= RANGES_MAX + 1
    for number in range(0, 8 * RANGES_MAX, 2):
        assert any(low <= number <= high for low, high, _ in ranges)
