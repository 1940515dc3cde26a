"""Random interleavings: one seed picks which peer appends, plays or dies next.

Peers differ in speed by up to a hundred times, because uniformly random picks hide faults that only slow peers meet.
Commands of a dead process may still get into the log, any time later; entries are repeated; leases of the dead end
late. In the end no more faults happen, and all remaining work is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from everbell.core.cluster import (
    AbortJoin,
    Balanced,
    Command,
    Drain,
    FoundCluster,
    Group,
    Member,
    Percentage,
    SetStrategy,
    Strategy,
    Undrain,
    Weighted,
    decode_command,
    decode_value,
    encode_value,
)
from tests.unit.core.cluster.stage import Peer, Stage

PARTITIONS = 12
ENTRIES_MAX = 1_500
STRATEGIES: tuple[Strategy, ...] = (
    Balanced(),
    Weighted(),
    Weighted({"a": 3, "b": 0}),
    Percentage((Group("g", 40, 2, 5, ("t",)),)),
)


class Weather:
    """One run: `events` things happen to the cluster while it works, then it comes to rest."""

    def __init__(self, seed: int, events: int, names: str = "abcdefg") -> None:
        self.random = Random(seed)
        self.stage = Stage()
        self.stage.append(FoundCluster("cluster", PARTITIONS))
        self._events = events
        self._names = names
        self._speeds: dict[str, float] = {}
        self._leases: list[str] = []
        """Dead processes with live leases."""
        self._late: list[Command] = []
        """Commands of processes that have died, which may still get into the log."""

    def run(self) -> None:
        """Run until no peer has anything to do. The first thing under test is that this ends."""
        while self.step():
            assert len(self.stage.log) < ENTRIES_MAX, "livelock"

    def step(self) -> bool:
        """Let one thing happen; False if there is nothing left that could."""
        actions = self._actions()
        if actions:
            self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
        return bool(actions)

    def _actions(self) -> list[tuple[Callable[[], object], float]]:
        actions: list[tuple[Callable[[], object], float]] = []
        for peer in self.stage.alive:
            speed = self._speeds[peer.me]
            actions += ((action, speed) for action in self._actions_of(peer))
            if peer.is_backing_off:
                # A joiner waits longer each time: against a slow cluster no other back-off comes to an end.
                actions.append((partial(self.stage.ask_to_join, peer), speed / 2 ** min(peer.attempts + 5, 12)))
        actions += ((partial(self._append_late, command), 0.2) for command in self._late)
        actions += ((partial(self._end_lease, incarnation), 0.2) for incarnation in self._leases)
        if self._events:
            actions.append((self._happen, 0.5))
        return actions

    def _actions_of(self, peer: Peer) -> list[Callable[[], object]]:
        actions: list[Callable[[], object]] = []
        if self.stage.is_behind(peer):
            actions.append(lambda: self.stage.play(peer))
        if peer.queue:
            actions.append(lambda: self.stage.append(peer.queue.popleft()))
        if peer.stopping:
            actions.append(lambda: self.stage.release(peer))
        return actions

    def _append_late(self, command: Command) -> None:
        self._late.remove(command)
        self.stage.append(command)

    def _end_lease(self, incarnation: str) -> None:
        self._leases.remove(incarnation)
        self.stage.end_lease(incarnation)

    def _happen(self) -> None:
        self._events -= 1
        pick = self.random.choices(
            [self.start, self.kill, self.kill_all, self._leave, self._operate, self._repeat, self._give_up],
            [30, 15, 1, 8, 12, 12, 5],
        )[0]
        pick()

    def start(self) -> Peer | None:
        """Start a process with a free name or the name of a dead process, sometimes from a snapshot."""
        free = [name for name in self._names if all(peer.member.name != name for peer in self.stage.alive)]
        if not free:
            return None
        name = self.random.choice(free)
        member = Member(
            name,
            incarnation=f"{name}{len(self.stage.peers)}",
            zone=self.random.choice("xy"),
            capacity=self.random.choice([0, 1, 1, 1, 2]),
            gateway=self.random.random() < 0.1,
        )
        donors = [peer for peer in self.stage.alive if self.random.random() < 0.3]
        snapshot = decode_value(encode_value(donors[0].value)) if donors else None
        self._speeds[member.incarnation] = 10 ** self.random.uniform(-1, 1)
        peer = self.stage.add(member, snapshot)
        self.stage.ask_to_join(peer)
        return peer

    def kill(self, peer: Peer | None = None) -> None:
        """A process dies; its lease lives on for a while."""
        peer = peer or self.random.choice(self.stage.alive or [None])
        if peer and peer.is_alive:
            self._late += (command for command in peer.queue if self.random.random() < 0.3)
            peer.end()
            self._leases.append(peer.me)

    def kill_all(self) -> None:
        while self.stage.alive:
            self.kill()

    def _leave(self) -> None:
        members = [peer for peer in self.stage.alive if peer.me in peer.value.members and not peer.is_leaving]
        if members:
            self.stage.leave(self.random.choice(members))

    def _operate(self) -> None:
        name = self.random.choice(self._names)
        choices: list[Command] = [Drain(name), Undrain(name), *map(SetStrategy, STRATEGIES)]
        self.stage.append(self.random.choice(choices))

    def _repeat(self) -> None:
        self.stage.append(decode_command(self.random.choice(self.stage.log)))

    def _give_up(self) -> None:
        joiners = [peer for peer in self.stage.alive if peer.me in peer.value.joins]
        if joiners:
            self.stage.append(AbortJoin(self.random.choice(joiners).me, "it took too long"))


def changeable(seed: int, events: int) -> Weather:
    """Anything may happen at any time."""
    weather = Weather(seed, events)
    weather.run()
    return weather


def hostile_to_joiners(seed: int, events: int) -> Weather:
    """Some processes join; then others start and die while they join, together with some that they need."""
    weather = Weather(seed, 0)
    for _ in range(1 + events % 4):
        weather.start()
    weather.run()
    joiners = [weather.start() for _ in range(1 + events % 3)]
    for joiner in joiners:
        for _ in range(weather.random.randrange(40)):
            weather.step()
        weather.kill(joiner)
        if weather.random.random() < 0.3:
            weather.kill()
    weather.run()
    return weather
