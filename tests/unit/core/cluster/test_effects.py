"""Effects and reactions: the actions of each node, and the commands it appends."""

from __future__ import annotations

from everbell.core.cluster import (
    NOTHING,
    AbortJoin,
    AcceptJoin,
    BackOff,
    Ceded,
    Drain,
    Drained,
    Effect,
    Halt,
    Inspect,
    Joined,
    Leave,
    Left,
    Member,
    NameTaken,
    NotifyWatchers,
    PeerGc,
    PrepareJoin,
    PutDocument,
    Release,
    Remove,
    SetStrategy,
    Start,
    Stop,
    Unwatch,
    Value,
    Watch,
    Weighted,
    apply,
    effects,
    reactions,
    watcher_of,
    watches,
)
from everbell.core.cluster.commands import Command, RaiseFormat
from tests.unit.core.cluster.towns import after, founded, joined, rested, town

d = Member("d", "d")


def done(value: Value, command: Command, me: str) -> tuple[Effect, ...]:
    """The effects of the next entry for `me`."""
    return effects(value, apply(value, value.index + 1, command), me)


def test_the_first_member_starts_everything() -> None:
    value = founded(2)

    assert done(value, PrepareJoin(d), "d") == (Joined(), Start(0, 2, True), Start(1, 2, True))


def test_a_snapshot_is_begun_with_like_a_log() -> None:
    value = after(town("ab", 2), PutDocument("t", b"1"), SetStrategy(Weighted({"a": 1})))
    [mine] = [number for number, part in enumerate(value.partitions) if part.owner == "a"]

    assert effects(NOTHING, value, "a") == (
        Watch("b"),
        Joined(),
        Start(mine, value.partitions[mine].epoch, True),
    )


def test_a_snapshot_in_which_partitions_are_on_their_way_out() -> None:
    value = joined(town("a", 2), d)
    [moving] = [number for number, part in enumerate(value.partitions) if part.to]

    assert Stop(moving, 2) in effects(NOTHING, value, "a")
    assert Start(moving, 2, True) not in effects(NOTHING, value, "a")


def test_effects_over_many_entries_are_those_of_the_last_value() -> None:
    before = town("ab", 4)
    [first, second] = [number for number, part in enumerate(before.partitions) if part.owner == "a"]
    later = rested(after(rested(after(before, Drain("a"))), Leave("b")))

    seen = effects(before, later, "a")

    assert {Ceded(first, 2), Ceded(second, 2), Unwatch("b")} <= set(seen)
    assert {effect.epoch for effect in seen if isinstance(effect, Start)} == {later.partitions[0].epoch}


def test_a_removed_node_halts_and_one_that_left_has_left() -> None:
    value = town("abc", 3)

    assert done(value, Remove("a", by="c"), "a")[0] == Halt("its lease ended, says c")
    assert done(value, Leave("a"), "a")[0] == Left()
    assert effects(value, after(value, Remove("a", by="c"), PeerGc("x")), "a")[0] == Halt("it was removed")


def test_a_hand_over_is_stopped_then_started() -> None:
    value = joined(town("a", 2), d)
    [moving] = [number for number, part in enumerate(value.partitions) if part.to]
    release = Release("a", {moving: 2})

    assert done(value, release, "a") == (Ceded(moving, 2),)
    assert done(value, release, "d") == (Start(moving, value.index + 1, True),)


def test_a_node_is_drained_once() -> None:
    value = after(town("ab", 2), Drain("a"))
    [moving] = [number for number, part in enumerate(value.partitions) if part.to]
    release = Release("a", {moving: value.partitions[moving].epoch})

    assert Drained() not in effects(town("ab", 2), value, "a")
    assert Drained() in done(value, release, "a")
    assert Drained() not in done(after(value, release), PeerGc("x"), "a")


def test_a_joiner_inspects_all_others() -> None:
    value = after(town("ab", 2), PrepareJoin(Member("c", "c")))

    assert done(value, PeerGc("d"), "d") == (Inspect(("a", "b", "c")),)
    assert done(value, PeerGc("d"), "a") == ()


def test_why_a_join_came_to_nothing() -> None:
    one = after(town("a", 2), PrepareJoin(Member("c", "c")))

    assert done(one, PrepareJoin(d), "d") == (BackOff("all members are busy with other joins"),)
    assert done(one, PrepareJoin(Member("a", "a2")), "a2") == (NameTaken("a"),)
    assert done(one, AbortJoin("c", "too slow"), "c") == (Unwatch("a"), BackOff("too slow"))
    assert done(one, Remove("a", by="c"), "c") == (Unwatch("a"), BackOff("a member that it needed left"))
    gone = after(town("ab", 2), Leave("b"))
    assert done(gone, PrepareJoin(Member("b", "b")), "b") == (Halt("this incarnation has left the cluster"),)
    newer = after(founded(), PrepareJoin(Member("a", "a", format=2)), RaiseFormat(2))
    assert done(newer, PrepareJoin(d), "d") == (Halt("it does not understand the format of the log"),)


def test_the_ring_is_walked_both_ways() -> None:
    value = town("abc", 3)

    for member in value.members:
        assert watcher_of(value, watches(value, member)) == member


def test_a_joiner_and_its_watcher_append_the_next_phase() -> None:
    before = town("abc", 3)
    prepared = after(before, PrepareJoin(d))
    target = prepared.joins["d"].target
    watcher = watcher_of(before, target)
    notified = after(prepared, NotifyWatchers("d"))

    assert reactions(before, prepared, "d") == (NotifyWatchers("d"),)
    assert reactions(prepared, notified, watcher) == (AcceptJoin("d"),)
    assert [reactions(prepared, notified, me) for me in ("a", "b", "c", "d") if me != watcher] == [(), (), ()]


def test_a_node_that_begins_with_a_snapshot_repeats_its_reactions() -> None:
    prepared = after(town("abc", 3), PrepareJoin(d))
    notified = after(prepared, NotifyWatchers("d"))

    assert reactions(NOTHING, prepared, "d") == (NotifyWatchers("d"),)
    assert reactions(NOTHING, notified, watcher_of(notified, notified.joins["d"].target)) == (AcceptJoin("d"),)
