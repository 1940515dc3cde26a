"""Take each safeguard away, and something must notice. A checker that cannot fail is none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest
from msgspec.structs import replace

from everbell.core.cluster import Command, Inspect, Placement, PrepareJoin, Value, membership, placement, watching
from everbell.errors import BrokenInvariant
from tests.unit.core.cluster import stage
from tests.unit.core.cluster.test_interleavings import check_rest
from tests.unit.core.cluster.weather import changeable, hostile_to_joiners

SEEDS = 400

# The package has a function of the same name, which hides the module from an import statement.
EFFECTS = import_module("everbell.core.cluster.effects")

Patch = Callable[[pytest.MonkeyPatch], None]


def is_noticed() -> bool:
    """Whether one of some runs goes wrong."""
    for seed in range(SEEDS):
        weather = changeable if seed % 2 else hostile_to_joiners
        try:
            check_rest(weather(seed, 5 + seed % 37))
        except (AssertionError, BrokenInvariant):
            return True
    return False


def nobody_watches_joiners(patch: pytest.MonkeyPatch) -> None:
    def watched(value: Value, me: str) -> tuple[str, ...]:
        return tuple(other for other in watching.watched(value, me) if other not in value.joins)

    _watch_as(watched, patch)


def joiners_watch_nobody(patch: pytest.MonkeyPatch) -> None:
    def watched(value: Value, me: str) -> tuple[str, ...]:
        return () if me in value.joins else watching.watched(value, me)

    _watch_as(watched, patch)


def _watch_as(watched: Callable[[Value, str], tuple[str, ...]], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EFFECTS, "watched", watched)


def nobody_asks_who_is_dead_already(patch: pytest.MonkeyPatch) -> None:
    end_lease = stage.Stage.end_lease

    def told_now_or_never(self: stage.Stage, incarnation: str) -> dict[str, Command]:
        told = end_lease(self, incarnation)
        self.ended.discard(incarnation)
        return told

    patch.setattr(stage.Stage, "end_lease", told_now_or_never)


def joiners_inspect_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EFFECTS, "Inspect", lambda incarnations: Inspect(()))


def partitions_move_without_being_released(patch: pytest.MonkeyPatch) -> None:
    def settled(value: Value, part: Placement, target: str) -> Placement:
        return Placement(target, value.index) if target and target != part.owner else part

    patch.setattr(placement, "_settled", settled)


def the_departed_may_come_back(patch: pytest.MonkeyPatch) -> None:
    prepare_join = membership.prepare_join

    def forgetful(value: Value, command: PrepareJoin) -> Value:
        return prepare_join(replace(value, departed=()), command)

    patch.setattr(membership, "prepare_join", forgetful)


def joins_survive_the_members_that_they_need(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_without_joins", lambda value, joiners: value)


@pytest.mark.parametrize(
    "take_away",
    [
        nobody_watches_joiners,
        joiners_watch_nobody,
        nobody_asks_who_is_dead_already,
        joiners_inspect_nobody,
        partitions_move_without_being_released,
        the_departed_may_come_back,
        joins_survive_the_members_that_they_need,
    ],
    ids=lambda patch: patch.__name__,
)
def test_a_missing_safeguard_is_noticed(take_away: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch)

    assert is_noticed()
