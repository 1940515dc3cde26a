"""The cluster as people and programs see it."""

from __future__ import annotations

import msgspec

from everbell.core.cluster import (
    NOTHING,
    Command,
    Drain,
    FoundCluster,
    Member,
    PrepareJoin,
    Release,
    Remove,
    Value,
    apply,
)
from everbell.core.cluster.commands import AcceptJoin, NotifyWatchers
from everbell.core.cluster.view import ClusterView, fingerprint, view_of

SECRET = "the id of the cluster"


def played(*commands: Command) -> Value:
    value = NOTHING
    for index, command in enumerate(commands, 1):
        value = apply(value, index, command)
    return value


def joined(*names: str) -> list[Command]:
    """The commands by which nodes come in, one after the other."""
    commands: list[Command] = [FoundCluster(SECRET, 6)]
    for name in names:
        member = Member(name, f"{name}/x", (f"{name}:1", f"http://{name}:2"), zone=f"zone of {name}")
        commands += [PrepareJoin(member), NotifyWatchers(f"{name}/x"), AcceptJoin(f"{name}/x")]
    return commands


def released(value: Value) -> list[Command]:
    """All owners release the partitions that have to move."""
    owners = sorted({part.owner for part in value.partitions if part.to})
    return [
        Release(owner, {n: part.epoch for n, part in enumerate(value.partitions) if part.owner == owner and part.to})
        for owner in owners
    ]


def seen(value: Value, me: str = "a/x", name: str = "a") -> ClusterView:
    return view_of(value, me, name, 3, 900, {value.index: 1_767_225_600_000})


def two() -> Value:
    commands = joined("a", "b")
    return played(*commands, *released(played(*commands)))


def test_members_are_shown_by_name_with_their_partitions() -> None:
    a, b = seen(two()).members
    assert (a.name, a.incarnation, a.state, a.partitions) == ("a", "a/x", "member", 3)
    assert (b.name, b.watches, b.backup, b.zone) == ("b", "a", "a", "zone of b")
    assert b.addresses == ("b:1", "http://b:2")


def test_the_answering_node_describes_itself() -> None:
    view = seen(two(), "b/x", "b")
    assert (view.node, view.incarnation, view.log_lag_ms, view.lease_left_ms) == ("b", "b/x", 3, 900)
    assert view.log_index == two().index


def test_partitions_have_owners_epochs_and_backups() -> None:
    view = seen(two())
    assert view.partition_states == {"owned": 6}
    assert {part.owner for part in view.partitions} == {"a", "b"}
    assert all(part.backups == ("b" if part.owner == "a" else "a",) for part in view.partitions)
    assert [part.partition for part in view.partitions] == list(range(6))


def test_partitions_that_move_say_where_to() -> None:
    view = seen(played(*joined("a", "b")))
    assert view.partition_states == {"moving": 3, "owned": 3}
    assert {part.to for part in view.partitions if part.state == "moving"} == {"b"}
    assert next(member for member in view.members if member.name == "a").moving == 3


def test_a_node_on_its_way_in_is_joining() -> None:
    value = played(*joined("a"), PrepareJoin(Member("b", "b/x")))
    assert [(member.name, member.state) for member in seen(value).members] == [("a", "member"), ("b", "joining")]


def test_a_node_that_is_to_own_nothing_is_draining() -> None:
    value = apply(two(), two().index + 1, Drain("b"))
    assert [member.state for member in seen(value).members] == ["member", "draining"]


def test_a_stand_in_names_the_dead_node() -> None:
    value = apply(two(), two().index + 1, Remove("b/x", by="a/x", reason="its lease ended"))
    view = seen(value)
    [stand_in] = view.stand_ins
    assert (stand_in.dead, stand_in.by, len(stand_in.partitions)) == ("b", "a", 3)
    assert sum(not part.clean for part in view.partitions) == 3
    assert [member.name for member in view.members] == ["a"]
    assert view.members[0].watches is None


def test_transitions_are_shown_with_their_times_if_known() -> None:
    last, *_ = reversed(seen(two()).transitions)
    assert (last.kind, last.what, last.at) == ("release", "a/x", "2026-01-01T00:00:00.000Z")
    assert seen(two()).transitions[0].at is None


def test_the_view_hides_the_id_of_the_cluster() -> None:
    value = two()
    text = msgspec.json.encode(seen(value)).decode()
    assert fingerprint(value) in text
    assert SECRET not in text


def test_an_empty_cluster_can_be_looked_at() -> None:
    view = seen(NOTHING, "", "a")
    assert (view.members, view.partitions, view.ring, view.stand_ins) == ((), (), (), ())
