from __future__ import annotations

from bisect import bisect_right
from random import Random

from everbell.stores.memory.positions import Positions


def test_it_is_a_sorted_set_whatever_the_order_of_additions_and_removals() -> None:
    chance = Random(1)
    positions, model = Positions(), set[int]()
    for step in range(20_000):
        # It grows to thousands of positions, so that it splits, and then shrinks to nothing.
        if step < 12_000 or chance.random() < 0.2:
            place = chance.randrange(1_000_000)
            if place not in model:
                model.add(place)
                positions.add(place)
        elif model:
            place = chance.choice(sorted(model)) if step % 50 == 0 else min(model)
            model.discard(place)
            positions.discard(place)
        positions.discard(-step)
        if step % 500 == 0:
            ordered = sorted(model)
            start = chance.randrange(1_000_000)
            assert list(positions.after(-1)) == ordered
            assert list(positions.after(start)) == ordered[bisect_right(ordered, start) :]
            assert len(positions) == len(model)


def test_it_takes_positions_in_order_and_gives_all_back() -> None:
    positions = Positions()
    for place in range(5_000):
        positions.add(place)
    for place in range(5_000):
        positions.discard(place)
        positions.discard(place)

    assert list(positions.after(-1)) == []
    assert len(positions) == 0
