"""The cluster as a value: everything that nodes must agree on, and nothing else.

Playing the log yields this value; it is the same on every node at every index. So it has no clock, no randomness and no
order but the log's. Members are known by incarnation, a token made at every start of a process: a node that was
removed and comes back is somebody else, with the same name.
"""

from __future__ import annotations

from hashlib import sha256
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
    """Where other nodes reach it."""
    zone: str = ""
    capacity: int = 1
    """Its weight: a member of capacity 2 owns twice as many partitions as one of capacity 1."""
    gateway: bool = False
    """It takes requests and owns no partitions."""
    format: int = 1
    """The newest format of the log that it understands."""
    draining: bool = False
    """It is to own no partitions as soon as others have taken them over."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process on its way into the ring."""

    member: Member
    target: str
    """The member that it will watch. Whoever watches that one now will watch the newcomer instead."""
    phase: Literal["prepared", "notified"] = "prepared"


class Partition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who runs a partition, and who is to run it next."""

    owner: str = ""
    """The incarnation that may change its state; empty when nobody may."""
    epoch: int = 0
    """The index of the entry that gave it to its owner (to the last one, when there is none now). It fences writes."""
    to: str = ""
    """While it is handed over: who gets it when the owner has stopped, drained and released it. That may be the owner
    itself again, if the reason to move went away: a hand-over that was begun is never called off, so that an owner
    who was told to stop need not wonder whether it may go on."""
    clean: bool = True
    """Whether the owner before this one released it. If not, that one may have had requests under way."""
    home: str = ""
    """The name of the dead member for whom the owner stands in."""

    @property
    def state(self) -> Literal["owned", "moving", "unowned"]:
        """One word for people."""
        if not self.owner:
            return "unowned"
        return "moving" if self.to else "owned"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of a tenant: a document that the cluster keeps and does not read."""

    version: int
    """The index of the entry that wrote it."""
    document: bytes


class Transition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an entry did, for people who ask what happened."""

    index: int
    kind: str
    what: str
    """The incarnation, partition or tenant that it happened to."""
    reason: str = ""
    by: str = ""
    """The incarnation that caused it or stands in its way."""


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that nodes agree on. Never change what is in its dicts: make another value."""

    index: int = 0
    """The last entry that was played."""
    cluster: str = ""
    """The id of the cluster; empty until it is founded."""
    format: int = 0
    """The format of the log: members that do not understand it are kept out."""
    partitions: tuple[Partition, ...] = ()
    members: dict[str, Member] = {}
    ring: tuple[str, ...] = ()
    """Each member watches the one after it, the last one the first."""
    joins: dict[str, Join] = {}
    backups: dict[str, str] = {}
    """For each member that can own partitions, who is first in line for them; absent where there is nobody."""
    strategy: Strategy = Weighted()
    policies: dict[str, Policy] = {}
    departed: tuple[str, ...] = ()
    """The last incarnations that left or were removed. They never come back, only their names do."""
    transitions: tuple[Transition, ...] = ()


NOTHING = Value()
"""The value before the first entry."""

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(Value)


def encode_value(value: Value) -> bytes:
    """A snapshot: equal bytes for equal values."""
    return _ENCODER.encode(value)


def decode_value(data: bytes) -> Value:
    """The value in a snapshot. Raises UnknownSnapshot if it cannot be understood completely."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownSnapshot(
            f"The snapshot of the cluster cannot be read ({error}). If a newer version of Everbell wrote it, "
            "upgrade this node; it must not go on with half of what the others know."
        ) from error


def value_hash(value: Value) -> str:
    """A fingerprint that is equal on all nodes that have played the same entries."""
    return sha256(_ENCODER.encode(value)).hexdigest()


def member_named(value: Value, name: str) -> Member | None:
    """The member or joiner that has this name now."""
    for member in (*value.members.values(), *(join.member for join in value.joins.values())):
        if member.name == name:
            return member
    return None


def next_in_line(value: Value, partition: int) -> tuple[str, ...]:
    """The members next in line for a partition: its owner's backup, the backup of that one, and so on."""
    owner = value.partitions[partition].owner
    line: list[str] = []
    heir = value.backups.get(owner, "")
    while heir and heir != owner and heir not in line:
        line.append(heir)
        heir = value.backups.get(heir, "")
    return tuple(line)


def stand_ins(value: Value) -> dict[str, dict[str, tuple[int, ...]]]:
    """Who stands in for whom: dead member's name, stand-in's name, partitions."""
    at_work: dict[str, dict[str, tuple[int, ...]]] = {}
    for number, partition in enumerate(value.partitions):
        if partition.home and partition.owner:
            partitions = at_work.setdefault(partition.home, {})
            name = value.members[partition.owner].name
            partitions[name] = (*partitions.get(name, ()), number)
    return at_work
