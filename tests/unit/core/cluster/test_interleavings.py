"""After any events in any order, the cluster comes to rest, and is whole when it does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from everbell.core.cluster import (
    NOTHING,
    Percentage,
    Value,
    apply,
    decode_command,
    decode_value,
    encode_value,
    watched,
)
from tests.unit.core.cluster.weather import Weather, changeable, hostile_to_joiners
from tests.value_hash import value_hash

seeds = st.integers(0, 2**32)
# Each of these plays two lives of a cluster, so a third of the usual number is as much work.
fewer = settings(max_examples=settings().max_examples // 3)


@given(seeds, st.integers(1, 40))
def test_the_cluster_comes_to_rest_and_is_complete(seed: int, events: int) -> None:
    check_rest(changeable(seed, events))


@given(seeds, st.integers(0, 11))
def test_joiners_die_on_their_way_in(seed: int, events: int) -> None:
    check_rest(hostile_to_joiners(seed, events))


@fewer
@given(seeds, st.integers(2, 7))
def test_all_join_at_the_same_time(seed: int, peers: int) -> None:
    weather = Weather(seed, events=0)
    for _ in range(peers):
        weather.start()

    weather.run()

    check_rest(weather)
    assert len(weather.stage.alive) == peers


@fewer
@given(seeds, st.integers(2, 6))
def test_all_die_and_all_come_back(seed: int, peers: int) -> None:
    weather = Weather(seed, events=0)
    for _ in range(peers):
        weather.start()
    weather.run()
    weather.kill_all()
    for _ in range(peers):
        weather.start()

    weather.run()

    check_rest(weather)
    assert len(weather.stage.alive) == peers


@fewer
@given(seeds, st.integers(2, 6))
def test_all_leave_and_come_back(seed: int, peers: int) -> None:
    weather = Weather(seed, events=0)
    for _ in range(peers):
        weather.start()
    weather.run()
    for peer in weather.stage.alive:
        weather.stage.leave(peer)
    weather.run()
    assert not weather.stage.alive
    for _ in range(peers):
        weather.start()

    weather.run()

    check_rest(weather)
    assert all(part.clean for part in weather.stage.alive[0].value.partitions)


@given(seeds, st.integers(1, 40), st.floats(0, 1))
def test_a_snapshot_and_later_entries_equal_the_whole_log(seed: int, events: int, place: float) -> None:
    log = changeable(seed, events).stage.log
    cut = int(place * len(log))

    whole = play(NOTHING, log)
    resumed = play(decode_value(encode_value(play(NOTHING, log[:cut]))), log[cut:])

    assert whole == resumed
    assert value_hash(whole) == value_hash(resumed)


def play(value: Value, log: list[bytes]) -> Value:
    for data in log:
        value = apply(value, value.index + 1, decode_command(data))
    return value


def check_rest(weather: Weather) -> None:
    """Every live process is a member and has played the whole log; every partition runs once, on its owner."""
    alive = weather.stage.alive
    if not alive:
        return
    value = alive[0].value
    assert all(peer.value == value for peer in alive)
    assert sorted(value.ring) == sorted(peer.me for peer in alive)
    assert not value.joins
    for peer in alive:
        owned = {number: part.epoch for number, part in enumerate(value.partitions) if part.owner == peer.me}
        assert peer.running == owned
        assert peer.watching == set(watched(value, peer.me))
    if not all(peer.member.gateway for peer in alive):
        assert all(part.state == "owned" for part in value.partitions)
    if len(alive) > 1:
        assert {target for peer in alive for target in peer.watching} == set(value.members), "somebody is unwatched"
    if isinstance(value.strategy, Percentage):
        assert is_apart(value)


def is_apart(value: Value) -> bool:
    """Whether no member serves two groups, if there are enough members."""
    assert isinstance(value.strategy, Percentage)
    [group] = value.strategy.groups
    inside = range(group.first, group.first + group.count)
    owners = [{part.owner for n, part in enumerate(value.partitions) if (n in inside) == within} for within in (0, 1)]
    able = [member for member in value.members.values() if not member.gateway and not member.draining]
    willing = [member for member in able if member.capacity] or able
    return len(willing) < 2 or owners[0].isdisjoint(owners[1])
