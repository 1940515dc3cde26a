"""A stage for the cluster value: peers with a queue each, one log, leases, and no sleeping.

It treats effects and reactions as the shell does, as plainly as possible: a peer plays entries at its own pace,
and its commands wait in its queue until the test appends them. On the way it checks two rules that no single value
can show: that all peers have the same value at the same index, and that no partition runs twice.
"""

from __future__ import annotations

from collections import deque

from everbell.core.cluster import (
    NOTHING,
    BackOff,
    Ceded,
    Command,
    Effect,
    Halt,
    Inspect,
    Joined,
    Leave,
    Left,
    Member,
    NameTaken,
    Release,
    Start,
    Stop,
    Unwatch,
    Value,
    Watch,
    apply,
    decode_command,
    effects,
    encode_command,
    first_try,
    inspected,
    next_try,
    reactions,
    report,
)
from tests.value_hash import value_hash


class Peer:
    """One process: its value, its partitions, and its pending commands."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.me = member.incarnation
        self.value = NOTHING
        self.queue: deque[Command] = deque()
        self.watching: set[str] = set()
        self.running: dict[int, int] = {}
        self.stopping: dict[int, int] = {}
        self.is_alive = True
        self.is_leaving = False
        self.is_backing_off = False
        self.attempts = 0

    def end(self) -> None:
        """Stop everything at once, as a killed process does."""
        self.is_alive = False
        self.queue.clear()
        self.running.clear()
        self.stopping.clear()


class Stage:
    """All peers, the log between them, and the ended leases."""

    def __init__(self, start: Value = NOTHING) -> None:
        self.start = start
        self.log: list[bytes] = []
        self.peers: dict[str, Peer] = {}
        self.ended: set[str] = set()
        self.hashes: dict[int, str] = {}
        self._played: dict[int, tuple[Value, Value]] = {}

    @property
    def alive(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.is_alive]

    def add(self, member: Member, snapshot: Value | None = None) -> Peer:
        """A process starts, with a snapshot if there is one; it wants nothing yet."""
        self.peers[member.incarnation] = peer = Peer(member)
        self._see(peer, NOTHING, snapshot or self.start)
        return peer

    def append(self, command: Command) -> int:
        """Put a command at the end of the log, in the form in which logs keep it."""
        self.log.append(encode_command(command))
        return self.start.index + len(self.log)

    def is_behind(self, peer: Peer) -> bool:
        return peer.value.index < self.start.index + len(self.log)

    def play(self, peer: Peer) -> tuple[tuple[Effect, ...], tuple[Command, ...]]:
        """Let the peer play the next entry; returns its effects and reactions."""
        before = peer.value
        # Peers share results that one of them computed from the very same value, to save time. A peer that began
        # with a snapshot has its own value, and computes for itself.
        source, after = self._played.get(before.index, (None, NOTHING))
        if source is not before:
            index = before.index + 1
            after = apply(before, index, decode_command(self.log[index - self.start.index - 1]))
            self._played.setdefault(before.index, (before, after))
            digest = value_hash(after)
            assert self.hashes.setdefault(after.index, digest) == digest, "two nodes disagree"
        return self._see(peer, before, after)

    def end_lease(self, incarnation: str) -> dict[str, Command]:
        """End the lease of a process; returns the commands of its watchers."""
        self.ended.add(incarnation)
        told = {peer.me: report(peer.me, incarnation) for peer in self.alive if incarnation in peer.watching}
        for me, command in told.items():
            self.peers[me].queue.append(command)
        return told

    def leave(self, peer: Peer) -> None:
        """Stop and drain all partitions, then append a leave."""
        peer.is_leaving = True
        peer.running.clear()
        peer.stopping.clear()
        peer.queue.append(Leave(peer.me))

    def release(self, peer: Peer) -> Command:
        """Release the partitions that were stopped and drained."""
        command = Release(peer.me, dict(peer.stopping))
        peer.stopping.clear()
        peer.queue.append(command)
        return command

    def _see(self, peer: Peer, before: Value, after: Value) -> tuple[tuple[Effect, ...], tuple[Command, ...]]:
        peer.value = after
        todo = effects(before, after, peer.me)
        for effect in todo:
            self._perform(peer, effect)
        if not peer.is_alive:
            return todo, ()
        # A watch of a lease that has ended ends at once, but not before the reactions to the entry.
        late = sorted(effect.incarnation for effect in todo if isinstance(effect, Watch))
        reports = [report(peer.me, each) for each in late if each in self.ended]
        commands = (*reactions(before, after, peer.me), *reports)
        peer.queue.extend(commands)
        return todo, commands

    def _perform(self, peer: Peer, effect: Effect) -> None:
        match effect:
            case Watch(incarnation):
                peer.watching.add(incarnation)
            case Unwatch(incarnation):
                peer.watching.discard(incarnation)
            case Inspect(incarnations):
                dead = [found for found in incarnations if found in self.ended]
                peer.queue.extend(inspected(peer.value, peer.member, dead))
            case BackOff() | NameTaken():
                peer.is_backing_off = True
            case Joined():
                peer.is_backing_off = False
            case Stop(partition, epoch):
                assert peer.running.pop(partition, epoch) == epoch
                peer.stopping[partition] = epoch
            case Ceded(partition, epoch):
                assert peer.running.get(partition) != epoch or peer.me in self.ended, "it was taken from a living owner"
            case Start(partition, epoch):
                self._start(peer, partition, epoch)
            case Halt() | Left():
                peer.end()

    def _start(self, peer: Peer, partition: int, epoch: int) -> None:
        if not peer.is_leaving:
            others = [other.me for other in self.alive if partition in other.running]
            assert not others, f"{peer.me} and {others} run partition {partition}"
            peer.running[partition] = epoch

    def ask_to_join(self, peer: Peer) -> None:
        """A process asks to join. From its second try on, it clears dead peers first."""
        peer.is_backing_off = False
        peer.queue.extend(next_try(peer.me) if peer.attempts else first_try(peer.member))
        peer.attempts += 1
