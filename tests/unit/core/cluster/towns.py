"""Small clusters to try things on."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.core.cluster import (
    NOTHING,
    AcceptJoin,
    Command,
    FoundCluster,
    Member,
    NotifyWatchers,
    Placement,
    PrepareJoin,
    Release,
    Value,
    apply,
)

NAMES = "abcdefghijklmnop"


def founded(partitions: int = 8) -> Value:
    return apply(NOTHING, 1, FoundCluster("town", partitions))


def after(value: Value, *commands: Command) -> Value:
    """The value after some more entries."""
    for command in commands:
        value = apply(value, value.index + 1, command)
    return value


def joined(value: Value, member: Member) -> Value:
    """The value after a process has joined, without any hand-over."""
    me = member.incarnation
    return after(value, PrepareJoin(member), NotifyWatchers(me), AcceptJoin(me))


def rested(value: Value) -> Value:
    """The value after all partitions that move have been released."""
    for owner in list(value.members):
        epochs = {n: part.epoch for n, part in enumerate(value.partitions) if part.owner == owner and part.to}
        if epochs:
            value = after(value, Release(owner, epochs))
    return value


def town(names: Sequence[str] = "abc", partitions: int = 8) -> Value:
    """A cluster at rest; incarnations are called like their names."""
    value = founded(partitions)
    for name in names:
        value = rested(joined(value, Member(name, name)))
    return value


def owners(value: Value) -> list[str]:
    """The present or next owner of every partition."""
    return [part.to or part.owner for part in value.partitions]


@st.composite
def unsettled(draw: st.DrawFn, members_max: int = 5, partitions_max: int = 20) -> Value:
    """A cluster in which partitions lie anywhere: with members of any weight, or unowned."""
    names = NAMES[: draw(st.integers(1, members_max))]
    members = {
        name: Member(
            name,
            name,
            zone=draw(st.sampled_from("xyz")),
            capacity=draw(st.integers(0, 4)),
            gateway=draw(st.integers(0, 9)) == 0,
            draining=draw(st.integers(0, 4)) == 0,
        )
        for name in names
    }
    able = [name for name in names if not members[name].gateway]
    places = st.sampled_from(["", *able])
    parts = [Placement(draw(places), epoch=1) for _ in range(draw(st.integers(1, partitions_max)))]
    return replace(founded(len(parts)), index=10, members=members, ring=tuple(names), partitions=tuple(parts))
