"""The safeguards of events of replicas, each with a way to remove it: without it, the checker has to notice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from everbell.core.replicas import copies
from everbell.core.replicas.copies import Copy
from everbell.core.replicas.sightings import Sightings
from everbell.engine.replica_requests import CopyName
from everbell.replicas.comparison import Comparison
from everbell.replicas.holder import Holder
from everbell.replicas.resync import Resync
from everbell.replicas.store import CopyStore
from everbell.replicas.turn_taking import TurnTaking
from tests.simulation.campaigning import Safeguard
from tests.simulation.replica_options import ReplicaOptions

Patch = pytest.MonkeyPatch


def tombstones_are_forgotten_soon(patch: Patch) -> None:
    """A copy of a node that was cut off brings an event back that has ended."""
    keep = CopyStore._keep

    def forget(store: CopyStore, name: CopyName) -> None:
        for end in [end for end in store._ends if end[1:] == (*name, 0)]:
            store._forget_end(end)

    def keep_for_a_moment(self: CopyStore, name: CopyName, change: Any, copy: Copy) -> None:
        keep(self, name, change, copy)
        if copy.event is None:
            asyncio.get_running_loop().call_later(2.0, forget, self, name)

    patch.setattr(CopyStore, "_keep", keep_for_a_moment)
    patch.setattr(CopyStore, "put_tombstone", lambda self, copy: None)


def attempts_do_not_postpone_the_others(patch: Patch) -> None:
    """A replica does not wait for an attempt of another one that outlasts the skew."""
    patch.setattr(TurnTaking, "note_busy", lambda self, busy, timeout_ms: None)


def versions_have_no_stamp(patch: Patch) -> None:
    """Two sides of a split can make the same version, and no rule decides between them."""
    order = Copy.order.fget  # type: ignore[attr-defined]

    def order_without_stamps(self: Copy) -> Any:
        version, _, occurrence, has_ended, attempts, is_dead, _ = order(self)
        return version, copies.NO_STAMP, occurrence, has_ended, attempts, is_dead, copies.NO_STAMP

    patch.setattr(Copy, "order", property(order_without_stamps))


def copies_are_dropped_without_a_confirmation(patch: Patch) -> None:
    """A node that is no longer a replica drops its copy, whether or not another node has it."""

    async def give_away(self: Resync, roster: Any, former: Any, silent: Any) -> bool:
        for copy, _ in former:
            await self._holder.forget(copy.name, copy)
        return True

    async def bring_nothing(self: Resync, member: str, copies: Any) -> bool | None:
        return True

    patch.setattr(Resync, "_give_away", give_away)
    patch.setattr(Resync, "_bring", bring_nothing)


def late_events_have_no_turns(patch: Patch) -> None:
    """All replicas attempt an event at once that is late when they learn of it."""
    turn_at = TurnTaking.turn_at

    def turn_by_due_time(self: TurnTaking, *args: Any) -> int:
        self._store.overdue.clear()
        return turn_at(self, *args)

    patch.setattr(TurnTaking, "turn_at", turn_by_due_time)


def lines_do_not_hold_the_others_back(patch: Patch) -> None:
    """All replicas send the events that wait in line for a slow receiver."""
    patch.setattr(TurnTaking, "note_lines", lambda self, sender, flows: None)


def nodes_that_left_are_not_in_doubt(patch: Patch) -> None:
    """An event that only a departed node holds is "not found"."""
    patch.setattr(Sightings, "doubtful", lambda self, now_ms: ())


def nodes_that_left_are_not_named(patch: Patch) -> None:
    """The answer to a cancel does not name the nodes that left the cluster with their copies."""
    patch.setattr(Sightings, "away", ())


def nodes_with_other_members_confirm(patch: Patch) -> None:
    """A node confirms a cancel although it knows other members, to which it may have given its copy."""
    change = Holder.change

    async def change_anyway(self: Holder, request: Any) -> Any:
        patched = type(request)(request.copies, self._members.roster.digest)
        return await change(self, patched)

    patch.setattr(Holder, "change", change_anyway)
    confirm = Comparison.confirm

    async def confirm_anyway(self: Comparison, request: Any) -> Any:
        return await confirm(self, type(request)(request.names, request.orders, self._members.roster.digest))

    patch.setattr(Comparison, "confirm", confirm_anyway)


_QUIET = ReplicaOptions(
    events=60,
    minutes=1.0,
    skew_ms=500,
    in_flight=2,
    cancels=0.0,
    changes=0.0,
    failing=0.0,
    clock_off_ms=0,
    drift=0.0,
    loss=0.0,
    twice=0.0,
    faults=("crash",),
    faults_a_minute=0.0,
)
_SPLITS = ReplicaOptions(events=90, changes=0.3, cancels=0.3, lead_s=30.0, faults=("split", "island", "cut-log"))
_MOVES = ReplicaOptions(events=60, faults=("grow", "restart", "storm", "cut-log"), faults_a_minute=10.0)
_LOG = ReplicaOptions(events=90, cancels=0.4, reads=0.4, changes=0.0, faults=("cut-log", "log-away", "pause"))

# The safeguard that is removed, the rules of the checker that notice, and a kind of world in which it matters.
REPLICA_SAFEGUARDS: list[tuple[Safeguard, tuple[str, ...], ReplicaOptions]] = [
    (tombstones_are_forgotten_soon, ("again", "cancelled"), _SPLITS),
    (attempts_do_not_postpone_the_others, ("duplicate",), _QUIET),
    (
        versions_have_no_stamp,
        ("differ",),
        ReplicaOptions(changes=0.8, cancels=0.0, repeats=0.8, lead_s=60.0, faults=("split",), faults_a_minute=8.0),
    ),
    (copies_are_dropped_without_a_confirmation, ("lost",), _MOVES),
    (
        late_events_have_no_turns,
        ("duplicate",),
        ReplicaOptions(events=90, failing=0.4, repeats=0.6, clock_off_ms=0, faults=("pause",)),
    ),
    (
        lines_do_not_hold_the_others_back,
        ("duplicate",),
        replace(_QUIET, events=250, minutes=0.3, in_flight=1, targets=1),
    ),
    (nodes_that_left_are_not_in_doubt, ("unknown",), _LOG),
    (nodes_that_left_are_not_named, ("cancelled",), _LOG),
    (nodes_with_other_members_confirm, ("cancelled", "lost"), _LOG),
]
