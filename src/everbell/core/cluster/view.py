"""The cluster as people and programs see it: the value, and one node's own place in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import sha256

from msgspec import Struct

from everbell.core.cluster.strategy import Strategy
from everbell.core.cluster.value import Member, Value, next_in_line, stand_ins
from everbell.core.cluster.watching import watches
from everbell.core.time import format_instant

_BACKUPS_SHOWN = 2


class MemberView(Struct, frozen=True, omit_defaults=True):
    """One node."""

    name: str
    incarnation: str
    state: str
    """`member`, `draining` or `joining`."""
    partitions: int = 0
    moving: int = 0
    """How many of them are on their way to others."""
    addresses: tuple[str, ...] = ()
    zone: str = ""
    capacity: int = 1
    gateway: bool = False
    watches: str | None = None
    backup: str | None = None
    """The member that is first in line for its partitions."""


class PartitionView(Struct, frozen=True, omit_defaults=True):
    """The owner and the next owners of a partition."""

    partition: int
    state: str
    owner: str | None = None
    epoch: int = 0
    to: str | None = None
    clean: bool = True
    backups: tuple[str, ...] = ()


class StandInView(Struct, frozen=True):
    """A node runs the partitions of a dead node, which gets them back when it returns."""

    dead: str
    by: str
    partitions: tuple[int, ...]


class TransitionView(Struct, frozen=True, omit_defaults=True):
    """The result of an entry of the log."""

    index: int
    kind: str
    what: str
    reason: str = ""
    by: str = ""
    at: str | None = None
    """When the answering node played it."""


class ReplicasView(Struct, frozen=True):
    """The events of replicas that the answering node holds in memory."""

    held: int
    """Events that have not ended."""
    held_by_rank: dict[int, int]
    """By the number of replicas that would deliver them before this node."""
    started_by_rank: dict[int, int]
    """Attempts that this node has started, by the same number."""
    duplicates: int
    """Occurrences that this node delivered, and another node too."""
    tombstones: int
    forgotten_early: int
    """Tombstones that were forgotten because there were too many; a node that returns may bring those events back."""
    held_bytes: int
    cap_bytes: int
    resync_left: int
    """Copies that the present resync has not compared yet."""
    resync_ms: int
    """For how long the present resync has been running; 0 if none is."""
    resync_sent: int
    given_away: int
    behind: tuple[str, ...]
    """Nodes that missed messages of this one, and have not been brought up to date yet."""
    settled: bool = True
    """Whether all replicas have the copies of this node, as far as it knows: no resync runs or is due."""
    refilled: bool = True
    """Whether all other members have given this node its copies since it started."""


class ClusterView(Struct, frozen=True):
    """Everything about the cluster."""

    cluster: str
    """A fingerprint of its id, which itself is a secret of its nodes."""
    node: str
    """The name of the answering node."""
    incarnation: str
    log_index: int
    log_lag_ms: int
    """How long ago the answering node last saw the end of the log."""
    lease_left_ms: int
    """How long the answering node may act without another renewal of its lease."""
    strategy: Strategy
    members: tuple[MemberView, ...]
    ring: tuple[str, ...]
    """By name: each watches the one after it, the last one the first."""
    partition_states: dict[str, int]
    partitions: tuple[PartitionView, ...]
    stand_ins: tuple[StandInView, ...]
    transitions: tuple[TransitionView, ...]
    pauses: int = 0
    """How many tenants, keys, targets and queues are paused."""
    replicas: ReplicasView | None = None


def view_of(
    value: Value, me: str, name: str, log_lag_ms: int, lease_left_ms: int, played_at: Mapping[int, int], pauses: int = 0
) -> ClusterView:
    """The view of one node; `played_at` has the times at which it played the latest entries."""
    names = {incarnation: member.name for incarnation, member in value.members.items()}
    parts = tuple(
        PartitionView(
            number,
            part.state,
            names.get(part.owner),
            part.epoch,
            names.get(part.to),
            part.clean,
            tuple(names[backup] for backup in next_in_line(value, number)[:_BACKUPS_SHOWN]),
        )
        for number, part in enumerate(value.partitions)
    )
    return ClusterView(
        fingerprint(value),
        name,
        me,
        value.index,
        log_lag_ms,
        lease_left_ms,
        value.strategy,
        tuple(sorted(_members(value, names), key=lambda member: (member.name, member.incarnation))),
        tuple(names[incarnation] for incarnation in value.ring),
        dict(sorted(Counter(part.state for part in parts).items())),
        parts,
        tuple(
            StandInView(dead, by, partitions)
            for dead, at_work in stand_ins(value).items()
            for by, partitions in at_work.items()
        ),
        tuple(
            TransitionView(
                entry.index,
                entry.kind,
                # The id of the cluster is a secret that nodes share, so users see its fingerprint.
                fingerprint(value) if entry.what == value.cluster else entry.what,
                entry.reason,
                entry.by,
                format_instant(played_at[entry.index]) if entry.index in played_at else None,
            )
            for entry in value.transitions
        ),
        pauses,
    )


def fingerprint(value: Value) -> str:
    """A short name of the cluster that does not reveal its id."""
    return sha256(b"cluster\0" + value.cluster.encode()).hexdigest()[:12]


def _members(value: Value, names: Mapping[str, str]) -> list[MemberView]:
    owned = Counter(part.owner for part in value.partitions)
    moving = Counter(part.owner for part in value.partitions if part.to)
    found = [
        _member(
            member,
            "draining" if member.draining else "member",
            owned[incarnation],
            moving[incarnation],
            names[watches(value, incarnation)] if len(value.ring) > 1 else None,
            names.get(value.backups.get(incarnation, "")),
        )
        for incarnation, member in value.members.items()
    ]
    return found + [_member(join.member, "joining", 0, 0, None, None) for join in value.joins.values()]


def _member(member: Member, state: str, owned: int, moving: int, watched: str | None, backup: str | None) -> MemberView:
    return MemberView(
        member.name,
        member.incarnation,
        state,
        owned,
        moving,
        member.addresses,
        member.zone,
        member.capacity,
        member.gateway,
        watched,
        backup,
    )
