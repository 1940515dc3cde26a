"""A node in the cluster: it joins, follows the cluster value, and leaves.

Each log entry that the node plays yields effects, which the node performs, and reactions, which it appends to the log.
`core.cluster` alone decides about the actions of a node; this module performs them.

A node that loses its lease is out: it drops everything at once, says so in the log, and joins again as a new
incarnation. A node that others removed does the same. So there is one way into the cluster for every case.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, assert_never

from everbell.clock import Clock
from everbell.cluster.appender import Appender, releases
from everbell.cluster.backoff import Backoff
from everbell.cluster.follower import DocumentFollower, Follow
from everbell.cluster.founding import find_or_found, token
from everbell.cluster.heartbeat import Heartbeat
from everbell.cluster.joining import NEXT_PHASES, Joining, NodePhase
from everbell.cluster.lease_watches import LeaseWatches
from everbell.cluster.partition_keeper import PartitionKeeper
from everbell.cluster.player import Player
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.supervised_task import OnHalt, begin
from everbell.core.cluster import (
    BackOff,
    Ceded,
    Command,
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
    Remove,
    Start,
    Stop,
    Unwatch,
    Value,
    Watch,
    effects,
    encode_command,
    first_try,
    is_drained,
    reactions,
    report,
    slices_of,
    watched,
)
from everbell.engine.engine import Engine
from everbell.entropy import Entropy
from everbell.errors import LogBroken, LogError, LogUnavailable, StoreError
from everbell.logs.port import Log

_log = logging.getLogger("everbell.cluster")

OnMembers = Callable[[set[str]], None]
"""Called with the incarnations of all members, whenever they change."""

_LEAVE_S = 3.0
_WRITE_S = 5.0


class ClusterNode:
    """One node of the cluster, through all its incarnations."""

    def __init__(
        self,
        log: Log,
        engine: Engine,
        clock: Clock,
        entropy: Entropy,
        settings: ClusterSettings,
        addresses: tuple[str, ...],
        base_epoch: int,
        player: Player,
        on_halt: OnHalt,
        on_members: OnMembers,
    ) -> None:
        self.me = ""
        """The current incarnation; empty while the node is out of the cluster."""
        self.settings = settings
        self.takeovers = 0
        self.transitions: Counter[str] = Counter()
        """The number of cluster transitions by kind that this process has played."""
        self._log = log
        self._engine = engine
        self._clock = clock
        self._entropy = entropy
        self._addresses = addresses
        self.player = player
        self._appender = Appender(log, on_halt)
        self._keeper = PartitionKeeper(engine, clock, settings, base_epoch, self._released, on_halt)
        self._on_halt = on_halt
        self._on_members = on_members
        self._heartbeat: Heartbeat | None = None
        self._watches = LeaseWatches(log, self._ended)
        self._is_drained = False
        """An operator drained this process. That survives a lost lease, and ends with the process."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(entropy)
        self._joining = Joining(self, log, settings.lease_ms, self._backoff, on_halt)
        self._phase = NodePhase.OUT
        self._joined = asyncio.Event()
        self._left = asyncio.Event()
        self._drained = asyncio.Event()

    @classmethod
    async def start(
        cls,
        log: Log,
        engine: Engine,
        clock: Clock,
        entropy: Entropy,
        settings: ClusterSettings,
        addresses: tuple[str, ...],
        on_halt: OnHalt,
        on_members: OnMembers = lambda incarnations: None,
        also: Sequence[Follow] = (),
    ) -> ClusterNode:
        """Find or found the cluster, and start to join it. Raises `LogError` and `ClusterError`.

        `also` follow the documents in the log, too: before the engine starts a partition, and at every change.
        """
        node: ClusterNode | None = None
        followers = [DocumentFollower(engine).follow, *also]

        def step(before: Value, after: Value) -> None:
            # A node that is not a member follows these too: it checks requests, and will be a member in a moment.
            for follow in followers:
                follow(after.policies)
            engine.slice_tenants(slices_of(after.strategy))
            if node is not None:
                node._step(before, after)

        player = Player(log, clock, step, on_halt, settings.snapshot_entries)
        base_epoch = await find_or_found(log, clock, player, engine.store, entropy)
        node = cls(log, engine, clock, entropy, settings, addresses, base_epoch, player, on_halt, on_members)
        player.start()
        node._appender.start()
        node._keeper.start()
        await node._enter()
        return node

    @property
    def value(self) -> Value:
        """The cluster value as this node has played it."""
        return self.player.value

    @property
    def lease_left_ms(self) -> int:
        """How long this node may act without renewing its lease."""
        return 0 if self._heartbeat is None else max(self._heartbeat.until_ms - self._clock.elapsed_ms(), 0)

    @property
    def log_lag_ms(self) -> int:
        """The time since this node last saw the end of the log."""
        return int((asyncio.get_running_loop().time() - self.player.seen_at_s) * 1_000)

    @property
    def is_member(self) -> bool:
        return self.me in self.value.members

    async def ready(self) -> None:
        """Wait until this node is a member and runs its partitions."""
        await self._joined.wait()
        while not (self.is_member and self._keeper.is_settled):
            await self.player.changed(0.05)

    def append(self, *commands: Command) -> None:
        """Append commands to the log, in the background."""
        self._appender.append(*commands)

    async def write(self, command: Command) -> int:
        """Append a command and return its index once this node has played it, or after 5 s. Raises `LogError`."""
        try:
            index = await self._log.append(encode_command(command))
        except LogBroken as broken:
            self._on_halt(broken)
            raise
        await self.player.saw(lambda value: value.index >= index, _WRITE_S)
        return index

    async def drain(self, timeout_s: float) -> bool:
        """Hand all partitions over to other nodes; False when that took too long, or when there is no other node."""
        self._go(NodePhase.LEAVING)
        if not self.others():
            return False
        if is_drained(self.value, self.me):
            return True
        self._drained.clear()
        self.append(Drain(self.settings.name, self.me))
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def leave(self, *, is_clean: bool) -> None:
        """Leave the cluster. The engine has stopped, so this node writes nothing any more."""
        self._go(NodePhase.LEAVING)
        if self.is_member:
            is_quiet = is_clean and self._keeper.is_quiet
            gone = Leave(self.me) if is_quiet else Remove(self.me, by=self.me, reason="it left attempts under way")
            self.append(gone)
            try:
                await asyncio.wait_for(self._left.wait(), _LEAVE_S)
            except TimeoutError:
                _log.warning("this node could not append its leave to the log; others will notice when its lease ends")
        await self.abandon()
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._log.release(self.me)
        except (LogError, TimeoutError):
            pass  # The lease ends by itself.

    async def abandon(self) -> None:
        """Stop all work without telling the cluster, like a process that dies."""
        self._go(NodePhase.LEAVING)
        if self._heartbeat is not None:
            self._heartbeat.stop()
        await self.player.stop()
        await self._keeper.stop()
        await self._appender.stop()
        await self._watches.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Joining

    async def _enter(self) -> None:
        """Start a new incarnation, with a lease of its own, and ask to join."""
        me = f"{self.settings.name}/{token(self._entropy)}"
        self._joined.clear()
        self._left.clear()
        heartbeat = Heartbeat(self._log, self._clock, self.settings, me, self._renewed, lambda: self._lost_lease(me))
        await heartbeat.start()
        if heartbeat.is_lost:
            raise LogUnavailable("the log took longer for a renewal than a lease lasts")
        # Only now that it has a lease: a node is at most one incarnation at a time.
        self.me, self._heartbeat = me, heartbeat
        self._go(NodePhase.JOINING)
        self.append(*first_try(self.member()))
        self._begin(self._joining.insist(me))

    def member(self) -> Member:
        """The description of this node that a join request carries."""
        settings = self.settings
        return Member(
            settings.name,
            self.me,
            self._addresses,
            settings.zone,
            settings.capacity,
            gateway=settings.gateway,
            draining=self._is_drained,
        )

    async def _enter_again(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.next_s())
            try:
                if self._phase is NodePhase.CUT_OFF:
                    await self._engine.store.counts()  # The node joins only after the store has answered.
                await self._enter()
            except (LogError, StoreError):
                continue
            return

    def _renewed(self, until_ms: int) -> None:
        self._engine.dispatcher.limit(until_ms, on_over=self._check_lease)

    def _check_lease(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.check()

    def _lost_lease(self, me: str) -> None:
        """The lease ended by our own clock: other nodes may take over from now on, so this node stops first."""
        if me != self.me:
            return  # That incarnation is out already.
        _log.error("this node lost its lease: it drops everything, and joins again when it can")
        self._go_out(NodePhase.OUT)
        self.append(Remove(me, by=me, reason="it lost its lease"))

    def give_way(self) -> None:
        """Leave all partitions to other nodes, and join again when this node can reach the store."""
        me = self.me
        _log.error("this node cannot reach the store, but other nodes can: it drops everything until it can")
        self._go_out(NodePhase.CUT_OFF)
        self.append(Remove(me, by=me, reason="it cannot reach the store"))

    def _go_out(self, phase: NodePhase) -> None:
        """End the current incarnation, and start another unless the process is leaving."""
        self._go(phase)
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._keeper.lose_everything()
        self._appender.forget()
        self.me = ""
        self._watches.clear()
        if self._phase is not NodePhase.LEAVING:
            self._begin(self._enter_again())

    def _go(self, phase: NodePhase) -> None:
        if phase in NEXT_PHASES[self._phase]:
            self._phase = phase

    # Following the log

    def _step(self, before: Value, after: Value) -> None:
        if after.members is not before.members:
            self._on_members(set(after.members))
        if after.transitions and after.transitions[-1].index == after.index:
            self.transitions[after.transitions[-1].kind] += 1
        if not self.me:
            return
        if self.me in after.members:
            self._is_drained = after.members[self.me].draining
        stops = []
        for effect in effects(before, after, self.me):
            if isinstance(effect, Stop):
                stops.append(effect)
            else:
                self._perform(effect)
        if stops:
            self._keeper.hand_over(stops)
        if self.me:
            self.append(*reactions(before, after, self.me))

    def _perform(self, effect: Effect) -> None:  # noqa: C901 -- one case for each member of a closed union
        match effect:
            case Halt(reason):
                self._halt(reason)
            case Left():
                self._left.set()
            case Ceded():
                self._keeper.cede(effect)
            case Watch(incarnation):
                self._watches.add(incarnation)
            case Unwatch(incarnation):
                self._watches.drop(incarnation)
            case Inspect(incarnations):
                self._begin(self._joining.inspect(incarnations))
            case BackOff(reason):
                _log.info("not in the cluster yet: %s", reason)
                self._begin(self._joining.join_later())
            case NameTaken(incarnation):
                self._begin(self._joining.wait_for_name(incarnation))
            case Joined():
                _log.info("joined the cluster as %s", self.me)
                self._go(NodePhase.MEMBER)
                self._backoff.reset()
                self._joined.set()
            case Drained():
                self._drained.set()
            case Start():
                self.takeovers += not effect.clean
                self._keeper.want(effect)
            case Stop():
                raise AssertionError("_step collects all stops and hands the partitions over together")
            case _:
                assert_never(effect)

    def _halt(self, reason: str) -> None:
        _log.error("this node is out of the cluster (%s): it drops everything, and joins again", reason)
        self._left.set()
        self._go_out(NodePhase.OUT)

    def _ended(self, incarnation: str) -> None:
        if incarnation in watched(self.value, self.me):
            _log.warning("the lease of %s ended", incarnation)
            self.append(report(self.me, incarnation))

    def _released(self, epochs: Mapping[int, int]) -> None:
        if self.me:
            self.append(*releases(self.me, epochs))

    def others(self) -> list[Member]:
        """The other members that can own partitions."""
        return [
            member
            for incarnation, member in self.value.members.items()
            if incarnation != self.me and not member.gateway and not member.draining
        ]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = begin(work, "everbell-node", self._on_halt)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
