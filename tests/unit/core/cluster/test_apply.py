"""Playing the log: total, repeatable, the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from everbell.core.cluster import (
    NOTHING,
    AbortJoin,
    Command,
    Drain,
    DropDocument,
    FoundCluster,
    Leave,
    Member,
    Percentage,
    Policy,
    PrepareJoin,
    PutDocument,
    RaiseFormat,
    Release,
    Remove,
    Value,
    apply,
    decode_command,
    decode_value,
    effects,
    encode_command,
    encode_value,
    reactions,
)
from everbell.core.cluster.value import DEPARTED_MAX, TRANSITIONS_MAX
from tests.unit.core.cluster.any_command import commands
from tests.unit.core.cluster.towns import after, founded, joined, owners, rested, town
from tests.value_hash import value_hash

ROOT = Path(__file__).parents[4]
GOLDEN = Path(__file__).with_name("golden_log.txt")


@given(st.lists(commands, max_size=40))
def test_any_commands_in_any_order_are_played_and_reacted_to(entries: list[Command]) -> None:
    value = founded(6)
    for command in entries:
        before, value = value, apply(value, value.index + 1, decode_command(encode_command(command)))
        for me in (*before.members, *before.joins, "x1"):
            effects(before, value, me)
            reactions(before, value, me)
        assert value.index == before.index + 1
        assert apply(value, value.index, command) == value, "an entry that was played is played once"
    assert decode_value(encode_value(value)) == value


@given(st.lists(commands, max_size=20), st.data())
def test_a_command_appended_twice_has_the_effect_of_one(entries: list[Command], data: st.DataObject) -> None:
    value = after(founded(6), *entries)
    command = data.draw(commands)

    once = after(value, command)
    twice = after(once, command)

    if not isinstance(command, PutDocument):
        assert (twice.members, twice.ring, twice.joins) == (once.members, once.ring, once.joins)
        assert owners(twice) == owners(once)
        assert twice.policies == once.policies


def test_the_first_found_counts() -> None:
    value = after(
        NOTHING, Drain("a"), FoundCluster("", 8), FoundCluster("x", 0), FoundCluster("one", 8), FoundCluster("two", 9)
    )

    assert (value.cluster, len(value.partitions), value.format, value.index) == ("one", 8, 1, 5)


def test_an_epoch_is_the_index_of_the_entry_that_gave_the_partition() -> None:
    value = town("a", 4)
    assert {part.epoch for part in value.partitions} == {2}

    value = joined(value, Member("b", "b"))
    moving = {number: part.epoch for number, part in enumerate(value.partitions) if part.to}
    assert {part.epoch for part in value.partitions} == {2}, "nothing moves before it is released"
    value = after(value, Release("a", moving))

    assert {value.partitions[number].epoch for number in moving} == {value.index}


def test_a_release_counts_only_from_the_owner_in_its_epoch_during_a_hand_over() -> None:
    value = joined(town("a", 4), Member("b", "b"))
    [moving, _] = [number for number, part in enumerate(value.partitions) if part.to]
    [staying, _] = [number for number, part in enumerate(value.partitions) if not part.to]

    for release in (
        Release("b", {moving: 2}),
        Release("a", {moving: 1}),
        Release("a", {staying: 2}),
        Release("a", {99: 2, -1: 2}),
        Release("nobody", {moving: 2}),
    ):
        assert after(value, release).partitions == value.partitions


def test_whether_the_last_owner_released_is_known() -> None:
    value = town("abc", 9)

    left = after(value, Leave("a"))
    removed = after(value, Remove("a", by="c"))

    assert all(part.clean for part in left.partitions)
    assert {part.clean for part, old in zip(removed.partitions, value.partitions, strict=True) if old.owner == "a"} == {
        False
    }


def test_a_cluster_that_was_empty_remembers_how_its_owners_ended() -> None:
    gone = after(town("a", 4), Remove("a", by="x"))
    assert {part.state for part in gone.partitions} == {"unowned"}

    value = after(gone, PrepareJoin(Member("b", "b")))

    assert not any(part.clean for part in value.partitions)
    assert all(part.owner == "b" and part.home == "a" for part in value.partitions)


def test_an_incarnation_never_comes_back() -> None:
    value = after(town("ab", 4), Leave("b"), PrepareJoin(Member("b", "b")))

    assert "b" not in value.members
    assert not value.joins
    assert value.transitions[-1].kind == "refuse-join"


def test_a_name_in_use_is_found_out() -> None:
    value = after(town("ab", 4), PrepareJoin(Member("b", "other")))

    assert not value.joins
    assert (value.transitions[-1].what, value.transitions[-1].by) == ("other", "b")


def test_policies_have_versions() -> None:
    value = after(founded(), PutDocument("t", b"1", expected=0))
    version = value.index
    assert value.policies == {"t": Policy(version, b"1")}

    stale = after(value, PutDocument("t", b"2", expected=version + 7), DropDocument("t", expected=0))
    assert stale.policies == value.policies
    changed = after(value, PutDocument("t", b"2", expected=version))
    assert changed.policies["t"] == Policy(changed.index, b"2")
    assert after(changed, DropDocument("t", expected=changed.index)).policies == {}


def test_the_format_is_raised_only_when_all_processes_understand_it() -> None:
    new, old = Member("new", "new", format=3), Member("old", "old", format=2)
    value = joined(after(founded(), PrepareJoin(new)), old)

    assert after(value, RaiseFormat(3)).format == 1
    raised = after(value, RaiseFormat(2))
    assert raised.format == 2
    assert after(raised, RaiseFormat(1)).format == 2
    refused = after(raised, PrepareJoin(Member("older", "older", format=1)))
    assert not refused.joins
    assert refused.transitions[-1].kind == "refuse-join"


def test_the_value_does_not_grow_with_the_log() -> None:
    value = town("a", 2)
    for number in range(DEPARTED_MAX + 50):
        me = f"b{number}"
        value = after(rested(joined(value, Member("b", me))), AbortJoin(me), Leave(me))

    assert len(value.transitions) == TRANSITIONS_MAX
    assert len(value.departed) == DEPARTED_MAX
    assert len(encode_value(value)) < 12_000


def test_hash_seeds_change_nothing() -> None:
    """The same interleavings in processes that order their sets differently."""
    code = (
        "from tests.unit.core.cluster.weather import Weather\n"
        "for seed in range(12):\n"
        "    weather = Weather(seed, 30)\n"
        "    weather.run()\n"
        "    print(weather.stage.hashes)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    }

    assert len(printed) == 1


def test_a_log_that_was_written_before_yields_the_same_value() -> None:
    """Nodes of two versions must agree. If this fails, old and new nodes would not: raise the format instead."""
    *entries, digest = GOLDEN.read_text().splitlines()
    value = NOTHING
    for entry in entries:
        value = apply(value, value.index + 1, decode_command(entry.encode()))

    if os.environ.get("EVERBELL_RETELL"):
        GOLDEN.write_text("\n".join([*entries, value_hash(value)]) + "\n")
        digest = value_hash(value)
    assert value_hash(value) == digest
    assert seen(entries) == {command.__struct_config__.tag for command in Command.__args__}
    assert isinstance(value.strategy, Percentage)


def seen(entries: list[str]) -> set[object]:
    return {decode_command(entry.encode()).__struct_config__.tag for entry in entries}


def test_equal_values_and_only_they_have_equal_hashes() -> None:
    values: list[Value] = [town("ab", 4), town("abc", 4), town("ab", 5)]

    assert len({value_hash(value) for value in values}) == 3
    assert value_hash(town("ab", 4)) == value_hash(values[0])
