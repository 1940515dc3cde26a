"""Lanes go through the phases of their transition table: no others, and all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from everbell.engine import ordering
from everbell.engine.lane import TRANSITIONS, Lane, LanePhase
from tests.simulation.campaign import simulate, world_of
from tests.simulation.test_world import BUSY

SEEDS = range(40_000, 40_012)


class WatchedLane(Lane):
    """A lane that records its transitions."""

    seen: ClassVar[set[tuple[LanePhase, LanePhase]]] = set()

    def __setattr__(self, name: str, value: object) -> None:
        if name == "phase" and hasattr(self, "phase"):
            assert isinstance(value, LanePhase)
            self.seen.add((self.phase, value))
        super().__setattr__(name, value)
        if name == "phase" and hasattr(self, "head"):
            assert (self.head is not None) is (value in (LanePhase.LED, LanePhase.HELD_BACK))


def test_lanes_go_through_exactly_the_phases_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "Lane", WatchedLane)
    monkeypatch.setattr(WatchedLane, "seen", set())
    for seed in SEEDS:
        world = replace(world_of(seed), pauses=30, keyed=1.0, cancels=0.2, touches=0.5)
        assert simulate(seed, world).violations == []
    # Here a user frees a key at the moment in which the store is asked for its mark.
    assert simulate(1, replace(BUSY, cancels=0.5, failing=0.5, touches=0.5)).violations == []

    assert WatchedLane.seen == TRANSITIONS
