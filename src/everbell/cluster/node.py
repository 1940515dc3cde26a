"""A node in the cluster: joins, does what the value says, and leaves.

Every entry that is played yields effects, which are performed here, and reactions, which are appended. What a node is
to do is decided in `core.cluster` alone; this is how.

A node that loses its lease is nobody: it drops everything at once, says so in the log, and joins again as another
incarnation. So does one that was removed by others. There is one way into the cluster, however a node came to need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, assert_never

from everbell.clock import Clock
from everbell.cluster.appender import Appender, releases
from everbell.cluster.backoff import Backoff
from everbell.cluster.entrance import Entrance
from everbell.cluster.follower import DocumentFollower
from everbell.cluster.founding import find_or_found, token
from everbell.cluster.heartbeat import Heartbeat
from everbell.cluster.keeper import Keeper
from everbell.cluster.player import Player
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.vital import OnHalt, begin
from everbell.cluster.watches import Watches
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
    PolicyChanged,
    PrepareJoin,
    Remove,
    Start,
    Stop,
    StrategyChanged,
    Unwatch,
    Value,
    Watch,
    effects,
    encode_command,
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

_LEAVE_S = 3.0
_WRITE_S = 5.0


class ClusterNode:
    """One member, through all its incarnations."""

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
    ) -> None:
        self.me = ""
        """The present incarnation."""
        self.settings = settings
        self.takeovers = 0
        self.transitions: Counter[str] = Counter()
        """What was done to the cluster, by kind, as far as this process has played it entry by entry."""
        self.on_members: Callable[[set[str]], None] = lambda incarnations: None
        """Told who is a member, whenever that changes."""
        self._log = log
        self._engine = engine
        self._clock = clock
        self._entropy = entropy
        self._addresses = addresses
        self.player = player
        self._appender = Appender(log, on_halt)
        self._keeper = Keeper(engine, clock, settings, base_epoch, self._released, on_halt)
        self._on_halt = on_halt
        self._heartbeat: Heartbeat | None = None
        self._watches = Watches(log, self._ended)
        self._is_drained = False
        """An operator wants this process to own nothing. That outlives a lost lease, and ends with the process."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(entropy)
        self._entrance = Entrance(self, log, settings.lease_ms, self._backoff, on_halt)
        self._gave_way = False
        """It left because it could not reach the store."""
        self._joined = asyncio.Event()
        self._left = asyncio.Event()
        self._drained = asyncio.Event()
        self._leaving = False
        engine.dispatcher.on_lease_over = self._check_lease

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
    ) -> ClusterNode:
        """Find or found the cluster, and begin to join it. Raises what the log raises, and `ClusterError`."""
        node: ClusterNode | None = None

        documents = DocumentFollower(engine)

        def step(before: Value, after: Value) -> None:
            # What counts for a node that is no member, too: it has requests to check, and will be one in a moment.
            documents.follow(after.policies)
            engine.slice_tenants(slices_of(after.strategy))
            if node is not None:
                node._step(before, after)

        player = Player(log, clock, step, on_halt, settings.snapshot_entries)
        base_epoch = await find_or_found(log, clock, player, engine.store, entropy)
        node = cls(log, engine, clock, entropy, settings, addresses, base_epoch, player, on_halt)
        player.start()
        node._appender.start()
        node._keeper.start()
        await node._enter()
        return node

    @property
    def value(self) -> Value:
        """The cluster as this node knows it."""
        return self.player.value

    @property
    def lease_left_ms(self) -> int:
        """How long this node may act without another renewal."""
        return 0 if self._heartbeat is None else max(self._heartbeat.until_ms - self._clock.elapsed_ms(), 0)

    @property
    def log_lag_ms(self) -> int:
        """How long ago the end of the log was seen."""
        return int((asyncio.get_running_loop().time() - self.player.seen_at_s) * 1_000)

    @property
    def is_member(self) -> bool:
        return self.me in self.value.members

    async def ready(self) -> None:
        """Wait until this node is a member and runs what it owns."""
        await self._joined.wait()
        while not (self.is_member and self._keeper.is_settled):
            await self.player.changed(0.05)

    def append(self, *commands: Command) -> None:
        """Ask for something in the log."""
        self._appender.append(*commands)

    async def write(self, command: Command) -> int:
        """The same, for who wants to know the index of the entry; returns when it was played here, unless that takes
        long. Raises `LogError`."""
        try:
            index = await self._log.append(encode_command(command))
        except LogBroken as broken:
            self._on_halt(broken)
            raise
        await self.player.saw(lambda value: value.index >= index, _WRITE_S)
        return index

    async def drain(self, timeout_s: float) -> bool:
        """Hand everything over to the others; False when the time passed first, or when there is nobody."""
        self._leaving = True
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
        """Go, after the engine has stopped: nothing is written by this node any more."""
        self._leaving = True
        if self.is_member:
            gone = Leave(self.me) if is_clean else Remove(self.me, by=self.me, reason="it left attempts under way")
            self.append(gone)
            try:
                await asyncio.wait_for(self._left.wait(), _LEAVE_S)
            except TimeoutError:
                _log.warning("the log did not take that this node leaves; the others will miss it in a moment")
        await self.abandon()
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._log.release(self.me)
        except (LogError, TimeoutError):
            pass  # It runs out by itself.

    async def abandon(self) -> None:
        """Do nothing any more, and say nothing: as a process that dies."""
        self._leaving = True
        if self._heartbeat is not None:
            self._heartbeat.stop()
        await self.player.stop()
        await self._keeper.stop()
        await self._appender.stop()
        await self._watches.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Coming in

    async def _enter(self) -> None:
        """Begin a new life: a new incarnation with a lease of its own asks to join."""
        me = f"{self.settings.name}/{token(self._entropy)}"
        self._joined.clear()
        self._left.clear()
        heartbeat = Heartbeat(self._log, self._clock, self.settings, me, self._renewed, lambda: self._lost_lease(me))
        await heartbeat.start()
        if heartbeat.is_lost:
            raise LogUnavailable("the log took longer for a renewal than a lease lasts")
        # Not before it has a lease: a node is one incarnation at a time, or nobody.
        self.me, self._heartbeat = me, heartbeat
        self.append(PrepareJoin(self.member()))
        self._begin(self._entrance.insist(me))

    def member(self) -> Member:
        """Who this node is, as it asks to join."""
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
                if self._gave_way:
                    await self._engine.store.counts()  # The store has to answer first.
                await self._enter()
            except (LogError, StoreError):
                continue
            self._gave_way = False
            return

    def _renewed(self, until_ms: int) -> None:
        self._engine.dispatcher.lease_until_ms = until_ms

    def _check_lease(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.check()

    def _lost_lease(self, me: str) -> None:
        """By our own clock: others may take over from now on, so we stop before they do."""
        if me != self.me:
            return  # It is nobody already.
        _log.error("this node lost its lease: it drops everything, and joins again when it can")
        self._nobody()
        self.append(Remove(me, by=me, reason="it lost its lease"))

    def give_way(self) -> None:
        """Leave everything to the others, and come back when the store can be reached."""
        me = self.me
        _log.error("this node cannot reach the store, and others can: it drops everything until it does")
        self._gave_way = True
        self._nobody()
        self.append(Remove(me, by=me, reason="it cannot reach the store"))

    def _nobody(self) -> None:
        """Whoever this node was, it is that no more."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._keeper.lose_everything()
        self._appender.forget()
        self.me = ""
        self._watches.clear()
        if not self._leaving:
            self._begin(self._enter_again())

    # What the log says

    def _step(self, before: Value, after: Value) -> None:
        if after.members is not before.members:
            self.on_members(set(after.members))
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

    def _perform(self, effect: Effect) -> None:  # noqa: C901 -- a closed union, told apart once
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
                self._begin(self._entrance.inspect(incarnations))
            case BackOff(reason):
                _log.info("not in the cluster yet: %s", reason)
                self._begin(self._entrance.join_later())
            case NameTaken(incarnation):
                self._begin(self._entrance.wait_for_name(incarnation))
            case Joined():
                _log.info("joined the cluster as %s", self.me)
                self._backoff.reset()
                self._joined.set()
            case Drained():
                self._drained.set()
            case Start():
                self.takeovers += not effect.clean
                self._keeper.want(effect)
            case Stop():
                raise AssertionError("partitions are stopped together")
            case StrategyChanged() | PolicyChanged():
                pass  # Followed by every step.
            case _:
                assert_never(effect)

    def _halt(self, reason: str) -> None:
        _log.error("this node is out of the cluster (%s): it drops everything, and joins again", reason)
        self._left.set()
        self._nobody()

    def _ended(self, incarnation: str) -> None:
        if incarnation in watched(self.value, self.me):
            _log.warning("the lease of %s ended", incarnation)
            self.append(report(self.me, incarnation))

    def _released(self, epochs: Mapping[int, int]) -> None:
        if self.me:
            self.append(*releases(self.me, epochs))

    def others(self) -> list[Member]:
        """Who else can own partitions."""
        return [
            member
            for incarnation, member in self.value.members.items()
            if incarnation != self.me and not member.gateway and not member.draining
        ]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = begin(work, "everbell-node", self._on_halt)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
