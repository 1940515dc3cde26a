"""The safeguards of a cluster, each with a way to remove it: without it, the checker has to notice."""

from __future__ import annotations

from typing import Any

import pytest

from everbell.cluster.heartbeat import Heartbeat
from everbell.cluster.node import ClusterNode
from everbell.cluster.partition_keeper import PartitionKeeper
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.store_watch import StoreWatch
from everbell.core.cluster import Stop
from everbell.engine.edits import Edits
from everbell.engine.intake import Intake
from everbell.engine.partition import Partition
from everbell.stores.memory import store as memory
from tests.simulation.campaigning import Safeguard
from tests.simulation.cluster_options import ClusterOptions

Patch = pytest.MonkeyPatch


def the_store_does_not_fence(patch: Patch) -> None:
    """A former owner of a partition may write to it."""
    patch.setattr(memory, "check_fence", lambda changes, claimed, in_force: None)


def leases_are_not_checked(patch: Patch) -> None:
    """A node that cannot renew its lease continues until another node removes it."""
    patch.setattr(Heartbeat, "check", lambda self: None)
    patch.setattr(ClusterNode, "_renewed", lambda self, until_ms: None)


def leases_have_no_margin(patch: Patch) -> None:
    """A node acts until the last moment, by a clock that may be slow."""
    patch.setattr(ClusterSettings, "margin_ms", property(lambda self: 0))


def partitions_are_released_before_they_are_drained(patch: Patch) -> None:
    """The new owner starts while the old one still sends."""

    def hand_over(self: PartitionKeeper, stops: list[Stop]) -> None:
        self._released({stop.partition: stop.epoch for stop in stops})

    patch.setattr(PartitionKeeper, "hand_over", hand_over)
    patch.setattr(PartitionKeeper, "cede", lambda self, ceded: None)


def the_new_owner_does_not_wait_for_the_dead_one(patch: Patch) -> None:
    """Deliveries of the last owner may still be in flight when the new owner begins."""
    patch.setattr(Partition, "quiet_ms", lambda self, elapsed_ms, tenant, to="": 0)


def versions_are_not_checked(patch: Patch) -> None:
    """A change may name any version."""
    make = Edits.make

    async def make_any(self: Edits, tenant: str, event_id: str, edit: Any, version: int | None, **how: bool) -> Any:
        return await make(self, tenant, event_id, edit, None, **how)

    patch.setattr(Edits, "make", make_any)


def stored_events_are_never_pushed(patch: Patch) -> None:
    """The read checkpoint is ignored: new events before the loader's position are not put into memory."""
    patch.setattr(Partition, "covers", lambda self, event, near_at: False)


def owners_are_not_checked(patch: Patch) -> None:
    """Neither intake nor the store checks the owner of a partition. Each of the two makes up for the other."""
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


def removed_nodes_continue(patch: Patch) -> None:
    """A node that was removed, or lost its lease, keeps its partitions."""
    patch.setattr(PartitionKeeper, "lose_everything", lambda self: self._wanted.clear())
    patch.setattr(PartitionKeeper, "cede", lambda self, ceded: None)


def a_node_without_the_store_keeps_its_partitions(patch: Patch) -> None:
    """A node that lost the store, and not the log, keeps its partitions for ever."""
    patch.setattr(StoreWatch, "_is_ill", lambda self: False)


_PAUSES = ClusterOptions(events=250, minutes=1.0, faults=("pause", "cut-log", "island"), faults_a_minute=20.0)
_MOVES = ClusterOptions(events=250, minutes=1.0, faults=("restart",), faults_a_minute=10.0, keys=3, keyed=1.0)
_CRASHES = ClusterOptions(events=250, minutes=1.0, faults=("crash",), faults_a_minute=12.0, keys=8, keyed=1.0)

# The safeguard that is removed, the rules of the checker that notice, and a kind of world in which it matters.
SAFEGUARDS: list[tuple[Safeguard, tuple[str, ...], ClusterOptions]] = [
    (the_store_does_not_fence, ("epoch", "ended", "owner"), _PAUSES),
    (leases_are_not_checked, ("outlived",), _PAUSES),
    (
        leases_have_no_margin,
        ("outlived",),
        ClusterOptions(events=250, minutes=1.0, keyed=0.2, drift=0.09, faults=("cut-log",), faults_a_minute=20.0),
    ),
    (partitions_are_released_before_they_are_drained, ("outlived", "overlap"), _MOVES),
    (the_new_owner_does_not_wait_for_the_dead_one, ("overlap",), _CRASHES),
    (versions_are_not_checked, ("version",), ClusterOptions(races=0.9, cancels=0.0, moves=0.0, faults_a_minute=0)),
    (stored_events_are_never_pushed, ("stuck", "lost"), ClusterOptions(faults_a_minute=0)),
    (owners_are_not_checked, ("epoch", "owner", "stuck", "lost"), _MOVES),
    (removed_nodes_continue, ("outlived", "overlap", "ended"), _PAUSES),
    (
        a_node_without_the_store_keeps_its_partitions,
        ("stuck",),
        ClusterOptions(events=120, minutes=1.0, faults_a_minute=0),
    ),
]
