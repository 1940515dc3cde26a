"""The safeguards of a cluster, each with a way to take it out: then the checker has to notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everbell.cluster.heartbeat import Heartbeat
from everbell.cluster.keeper import Keeper
from everbell.cluster.node import ClusterNode
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.store_watch import StoreWatch
from everbell.core.cluster import Stop
from everbell.engine.edits import Edits
from everbell.engine.intake import Intake
from everbell.engine.lanes import Lanes
from everbell.engine.partition import Partition
from everbell.stores import memory
from tests.simulation.cluster_options import ClusterOptions

Patch = pytest.MonkeyPatch
Safeguard = Callable[[Patch], None]


def the_store_does_not_fence(patch: Patch) -> None:
    """Whoever once owned a partition may write to it."""
    patch.setattr(memory, "check_fence", lambda changes, claimed, in_force: None)


def nobody_looks_at_the_lease(patch: Patch) -> None:
    """A node that cannot renew its lease goes on until somebody tells it that it is out."""
    patch.setattr(Heartbeat, "check", lambda self: None)
    patch.setattr(ClusterNode, "_renewed", lambda self, until_ms: None)


def leases_have_no_margin(patch: Patch) -> None:
    """A node acts until the last moment, by a clock that may be slow."""
    patch.setattr(ClusterSettings, "margin_ms", property(lambda self: 0))


def partitions_are_released_before_they_are_drained(patch: Patch) -> None:
    """The new owner starts while the old one still sends."""

    def hand_over(self: Keeper, stops: list[Stop]) -> None:
        self._released({stop.partition: stop.epoch for stop in stops})

    patch.setattr(Keeper, "hand_over", hand_over)
    patch.setattr(Keeper, "cede", lambda self, ceded: None)


def nobody_waits_for_a_dead_owner(patch: Patch) -> None:
    """What the last owner has sent may still be on its way when the new one begins."""
    patch.setattr(Lanes, "_wait_ms", lambda self, event: 0)


def versions_are_not_checked(patch: Patch) -> None:
    """A change may name any version."""
    make = Edits.make

    async def make_any(self: Edits, tenant: str, event_id: str, edit: Any, version: int | None, **how: bool) -> Any:
        return await make(self, tenant, event_id, edit, None, **how)

    patch.setattr(Edits, "make", make_any)


def what_is_stored_is_never_pushed(patch: Patch) -> None:
    """The read checkpoint is not asked: events that arrive behind the loader's front are not brought to memory."""
    patch.setattr(Partition, "covers", lambda self, event, near_at: False)


def anybody_takes_anything(patch: Patch) -> None:
    """Neither intake nor the store asks who owns a partition. Each of the two makes up for the other."""
    the_store_does_not_fence(patch)
    owned_one = Intake._owned_one

    def any_one(self: Intake, *args: Any) -> int:
        epochs = [partition.epoch for partition in self._partitions]
        for partition in self._partitions:
            partition.epoch = partition.epoch or 1
        try:
            return owned_one(self, *args)
        finally:
            for partition, epoch in zip(self._partitions, epochs, strict=True):
                partition.epoch = epoch

    patch.setattr(Intake, "_owned_one", any_one)


def who_is_out_goes_on(patch: Patch) -> None:
    """A node that was removed, or lost its lease, keeps what it had."""
    patch.setattr(Keeper, "lose_everything", lambda self: self._wanted.clear())
    patch.setattr(Keeper, "cede", lambda self, ceded: None)


def nobody_gives_way(patch: Patch) -> None:
    """A node that lost the store, and not the log, keeps its partitions for ever."""
    patch.setattr(StoreWatch, "_is_ill", lambda self: False)


_PAUSES = ClusterOptions(events=250, minutes=1.0, faults=("pause", "cut-log", "island"), faults_a_minute=20.0)
_MOVES = ClusterOptions(events=250, minutes=1.0, faults=("restart",), faults_a_minute=10.0, keys=3, keyed=1.0)
_CRASHES = ClusterOptions(events=250, minutes=1.0, faults=("crash",), faults_a_minute=12.0, keys=8, keyed=1.0)

# Which safeguard is taken out, which rules of the checker notice, and a kind of world in which it matters.
SAFEGUARDS: list[tuple[Safeguard, tuple[str, ...], ClusterOptions]] = [
    (the_store_does_not_fence, ("epoch", "ended", "owner"), _PAUSES),
    (nobody_looks_at_the_lease, ("outlived",), _PAUSES),
    (
        leases_have_no_margin,
        ("outlived",),
        ClusterOptions(events=250, minutes=1.0, keyed=0.2, drift=0.09, faults=("cut-log",), faults_a_minute=20.0),
    ),
    (partitions_are_released_before_they_are_drained, ("outlived", "overlap"), _MOVES),
    (nobody_waits_for_a_dead_owner, ("overlap",), _CRASHES),
    (versions_are_not_checked, ("version",), ClusterOptions(races=0.9, cancels=0.0, moves=0.0, faults_a_minute=0)),
    (what_is_stored_is_never_pushed, ("stuck", "lost"), ClusterOptions(faults_a_minute=0)),
    (anybody_takes_anything, ("epoch", "owner", "stuck", "lost"), _MOVES),
    (who_is_out_goes_on, ("outlived", "overlap", "ended"), _PAUSES),
    (nobody_gives_way, ("stuck",), ClusterOptions(events=120, minutes=1.0, faults_a_minute=0)),
]
