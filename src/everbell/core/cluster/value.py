"""The cluster as a value: everything that nodes must agree on, and nothing else.

Playing the log yields this value; it is the same on every node at every index. So it has no clock, no randomness and
no order but the log's. Members are known by incarnation, a token made at every start of a process: a node that was
removed and comes back is a new member with the same name.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from everbell.core.cluster.strategy import Strategy, Weighted
from everbell.errors import UnknownSnapshot

TRANSITIONS_MAX = 50
DEPARTED_MAX = 256


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process in the cluster."""

    name: str
    """Unique among living members; chosen by the operator, the same after a restart."""
    incarnation: str
    addresses: tuple[str, ...] = ()
    """The addresses for other nodes."""
    zone: str = ""
    capacity: int = 1
    """Its weight: a member of capacity 2 owns twice as many partitions as one of capacity 1."""
    gateway: bool = False
    """A gateway accepts requests and owns no partitions."""
    format: int = 1
    """The newest format of the log that the member understands."""
    draining: bool = False
    """The member should own no partitions as soon as others have taken them over."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process on its way into the ring."""

    member: Member
    target: str
    """The member that the joiner will watch. The target's present watcher will watch the joiner instead."""
    phase: Literal["prepared", "notified"] = "prepared"


class Placement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The present and the next owner of a partition."""

    owner: str = ""
    """The incarnation that may change the partition's state; empty if none may."""
    epoch: int = 0
    """The index of the entry that gave the partition to its (present or last) owner. It fences writes."""
    to: str = ""
    """During a hand-over: the incarnation that gets the partition when the owner has stopped, drained and released it.

    It may be the owner itself, if the reason to move went away: a hand-over is never called off, so that an owner
    that was told to stop need not ask whether it may go on.
    """
    clean: bool = True
    """Whether the previous owner released the partition. If not, that owner may have had requests in flight."""
    home: str = ""
    """The name of the dead member for which the owner stands in."""

    @property
    def state(self) -> Literal["owned", "moving", "unowned"]:
        """The state in one word, for people."""
        if not self.owner:
            return "unowned"
        return "moving" if self.to else "owned"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A versioned document that the cluster keeps and does not read: a tenant's policy, an access key or a pause."""

    version: int
    """The index of the entry that wrote it."""
    document: bytes


class Transition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of an entry, for people."""

    index: int
    kind: str
    what: str
    """The incarnation, partition or tenant that changed."""
    reason: str = ""
    by: str = ""
    """The incarnation that caused the change or prevents it."""


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that nodes agree on. Never change its dicts: make another value."""

    index: int = 0
    """The last entry that was played."""
    cluster: str = ""
    """The id of the cluster; empty until it is founded."""
    format: int = 0
    """The format of the log: members that do not understand it are kept out."""
    partitions: tuple[Placement, ...] = ()
    members: dict[str, Member] = {}
    ring: tuple[str, ...] = ()
    """Each member watches the next one, the last member the first."""
    joins: dict[str, Join] = {}
    backups: dict[str, str] = {}
    """For each member that can own partitions, the member that is first in line for them, if any."""
    strategy: Strategy = Weighted()
    policies: dict[str, Policy] = {}
    departed: tuple[str, ...] = ()
    """The last incarnations that left or were removed. An incarnation never comes back, only its name does."""
    transitions: tuple[Transition, ...] = ()


NOTHING = Value()
"""The value before the first entry."""

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(Value)


def encode_value(value: Value) -> bytes:
    """A snapshot: equal bytes for equal values."""
    return _ENCODER.encode(value)


def decode_value(data: bytes) -> Value:
    """The value in a snapshot. Raises `UnknownSnapshot` if this version does not understand all of it."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownSnapshot(
            f"The snapshot of the cluster cannot be read ({error}). If a newer version of Everbell wrote it, "
            "upgrade this node; it must not go on with half of what the others know."
        ) from error


def member_named(value: Value, name: str) -> Member | None:
    """The member or joiner that has this name now."""
    for member in (*value.members.values(), *(join.member for join in value.joins.values())):
        if member.name == name:
            return member
    return None


def next_in_line(value: Value, partition: int) -> tuple[str, ...]:
    """The members next in line for a partition: its owner's backup, that member's backup, and so on."""
    owner = value.partitions[partition].owner
    line: list[str] = []
    heir = value.backups.get(owner, "")
    while heir and heir != owner and heir not in line:
        line.append(heir)
        heir = value.backups.get(heir, "")
    return tuple(line)


def stand_ins(value: Value) -> dict[str, dict[str, tuple[int, ...]]]:
    """Stand-ins: the dead member's name, the stand-in's name, the partitions."""
    at_work: dict[str, dict[str, tuple[int, ...]]] = {}
    for number, partition in enumerate(value.partitions):
        if partition.home and partition.owner:
            partitions = at_work.setdefault(partition.home, {})
            name = value.members[partition.owner].name
            partitions[name] = (*partitions.get(name, ()), number)
    return at_work
