"""The engine of one node: the parts of this package, put together.

    Intake ──► Scribe ──► Store                 Outcomes ──► Scribe
                 │                                  ▲
               Floor ◄── Loader                     │
                 │                                  │
               Agenda ──► Lanes ──► Dispatcher ──► Channel

Clock, randomness, store and channels come from outside, so the same engine runs in production, in tests on virtual
time and in a simulation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from everbell.channels.nowhere import NowhereChannel
from everbell.channels.port import Channel
from everbell.channels.queue import QueueChannel
from everbell.channels.traced import TracedChannel
from everbell.clock import Clock
from everbell.core.ids import Slices
from everbell.core.tenant import Tenants
from everbell.engine.agenda import Agenda
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase, until_settled
from everbell.engine.floor import Floor
from everbell.engine.flow import Budget
from everbell.engine.intake import Intake
from everbell.engine.lanes import Lanes
from everbell.engine.leases import Leases
from everbell.engine.loader import Loader
from everbell.engine.meter import Meter
from everbell.engine.operations import Operations
from everbell.engine.outcomes import Outcomes
from everbell.engine.partition import Partition
from everbell.engine.pauses import Pauses
from everbell.engine.quotas import Quotas
from everbell.engine.scribe import Scribe, failing
from everbell.entropy import Entropy
from everbell.errors import EverbellError, StoreError, StoreUnavailable
from everbell.stores.port import Counts, Store

if TYPE_CHECKING:
    from everbell.tracing import Tracing

_log = logging.getLogger("everbell.engine")

_SWEEP_RECORDS = 2_000
_SWEEP_S = 30.0
_COUNT_S = 10.0
_TICK_S_LEFT = 0.1
"""While lines wait to be set going after a start."""


class EngineSettings(Struct, frozen=True):
    """The caps of one engine."""

    memory_bytes: int = 128 * 1024 * 1024
    """What events in memory may take: the near future, what is due and what is under way."""
    lookahead_ms: int = 5_000
    """How far ahead the loader reads."""
    page_events: int = 500
    in_flight: int = 4_096
    """Attempts under way at a time, over all targets."""
    watch_clock_s: float = 5.0
    """How often, at least, to look whether somebody has set the clock; on virtual time nobody does."""
    drain_s: float = 10.0
    """How long a stop waits for attempts that are under way."""


class Engine:
    """Everything between a checked draft and a recorded end: `await Engine.start(…)`, then `operations`, then
    `stop`."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[str, Channel],
        queues: QueueChannel,
        tenants: Tenants,
        clock: Clock,
        entropy: Entropy,
        settings: EngineSettings,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.store = store
        self.tenants = tenants
        self.epochs: dict[int, int] = {}
        """The partitions that are owned here, each with its epoch."""
        self.meter = Meter()
        self.broken: BaseException | None = None
        self._clock = clock
        self._channels: dict[str, Channel] = {**channels, "queue": queues}
        self._queues = queues
        self._nowhere = NowhereChannel()
        self._settings = settings
        self._on_broken = on_broken
        self._partitions = partitions = [Partition(index) for index in range(store.partitions)]
        self._owned: list[Partition] = []
        self._scribe = scribe = Scribe(store, self.epochs, self._broke, self.drop)
        self._agenda = Agenda(clock, self._ring, settings.watch_clock_s)
        self.dispatcher = Dispatcher(clock, self.epochs, settings.in_flight)
        budget = Budget(settings.memory_bytes)
        self.floor = floor = Floor(
            partitions, budget, self._agenda, self.dispatcher, tenants, self._channel_for, self._near_at
        )
        self._lanes = Lanes(store, clock, scribe, self.dispatcher, floor, partitions)
        self._loader = Loader(store, clock, partitions, self._owned, floor, settings.lookahead_ms, settings.page_events)
        self._outcomes = outcomes = Outcomes(clock, entropy, scribe, floor, self._lanes, self.meter)
        quotas = Quotas(tenants, clock, store.counts)
        self._intake = intake = Intake(
            clock, entropy, scribe, floor, self.meter, partitions, quotas, takes_parcels=store.takes_parcels
        )
        self.leases = Leases(queues, scribe, outcomes.flush)
        self.operations = Operations(
            store, clock, entropy, tenants, partitions, floor, intake, scribe, self._lanes, self.meter
        )
        self.pauses = Pauses(clock, floor, self._lanes, self.dispatcher, queues)
        self.dispatcher.on_settled = outcomes.settled
        self.dispatcher.on_expired = outcomes.expired
        self.dispatcher.on_given_back = self._given_back
        outcomes.place_beside = intake.place_beside
        outcomes.place_letter = intake.place_letter
        self.dispatcher.on_begun = self.meter.began
        floor.on_room = scribe.nudge
        floor.on_early = self._tick_for
        self.counts: Mapping[str, Counts] = {}
        """How many events each tenant has, as of the last look: some seconds old."""
        self._counted_at = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._swept_at = clock.now()

    @classmethod
    async def start(
        cls,
        store: Store,
        channels: Mapping[str, Channel],
        tenants: Tenants,
        clock: Clock,
        entropy: Entropy,
        settings: EngineSettings | None = None,
        on_broken: Callable[[BaseException], None] | None = None,
        epochs: Mapping[int, int] | None = None,
        tracing: Tracing | None = None,
    ) -> Engine:
        """Start with the partitions of `epochs`; without it the engine is alone, and takes all there are.

        `channels` are by the scheme of their targets. `tracing` makes spans of what is scheduled and attempted.
        """
        settings = settings or EngineSettings()
        queues = QueueChannel(clock)
        broken = on_broken or (lambda error: None)
        engine = cls(store, channels, queues, tenants, clock, entropy, settings, broken)
        if tracing is not None:
            engine._trace(tracing)
        engine._scribe.start(engine._loader.next_read, lambda: bool(engine.floor.starved), engine._outcomes.flush)
        try:
            await engine.take(dict.fromkeys(range(store.partitions), store.epoch + 1) if epochs is None else epochs)
        except BaseException:
            await engine._scribe.stop()
            raise
        engine._tick()
        return engine

    async def take(self, epochs: Mapping[int, int], *, quiet_ms: int = 0) -> None:
        """Own these partitions from now on: raise the fence, learn which keys are blocked, and go.

        For `quiet_ms` the last owner may still be sending what is due already, or is due by its clock: so long, a key
        that has such an event waits. Raises `Fenced` when somebody took one of them under a higher epoch, and
        `StoreUnavailable`; then none is taken.
        """
        if not epochs:
            return
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sequence: int | None = None

        async def operation() -> None:
            nonlocal sequence
            try:
                if sequence is None:
                    sequence = await self.store.raise_fence(epochs)
                for index in epochs:
                    await self._lanes.recover(index)
            except EverbellError as refused:
                if sequence is not None and isinstance(refused, StoreUnavailable):
                    raise  # The scribe tries again: the same fence cannot be raised twice.
                if not taken.done():
                    taken.set_exception(refused)
                if sequence is not None:
                    raise  # It ends the engine: what was taken could never be taken again, and would run nowhere.
                return
            if taken.done():
                return  # Whoever wanted them is gone.
            now = self._clock.now()
            quiet_until_ms = self._clock.elapsed_ms() + quiet_ms if quiet_ms else 0
            for index, epoch in epochs.items():
                self._partitions[index].take(epoch, now, quiet_until_ms)
            self.epochs.update(epochs)
            self._intake.count_from(sequence)
            self._own()
            taken.set_result(None)

        self._outcomes.flush()  # Of the last time they were here: it is stored or refused before anything is read.
        self._scribe.read(operation, failing(taken))
        await taken

    async def release(self, partitions: Collection[int], deadline_s: float) -> bool:
        """Let go of partitions: start nothing more of them, wait for what is under way, store what came of it.

        Returns whether all of it ended in time. In any case nothing of them is written after this.
        """
        leaving = frozenset(partitions).intersection(self.epochs)
        sending = self._lanes.sending(leaving)
        self._close(leaving)
        busy = []
        for entry in self.floor.of_partitions(leaving):
            if entry.under_way or entry.phase is Phase.SETTLING:
                busy.append(until_settled(entry))
            else:
                self.floor.forget(entry)
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*busy)
                for entry in sending:
                    while entry.under_way:  # It was cancelled, and its request is on its way all the same.
                        await until_settled(entry)
                self._outcomes.flush()
                await self._scribe.caught_up()
        except TimeoutError:
            pass
        left = self.floor.of_partitions(leaving)
        self.drop(leaving)
        return not left and not any(entry.under_way for entry in sending)

    def busy(self, partitions: Container[int]) -> set[int]:
        """Those of the partitions that have something under way."""
        entries = [*self.floor.of_partitions(partitions), *self._lanes.sending(partitions)]
        return {entry.event.partition for entry in entries if entry.under_way or entry.phase is Phase.SETTLING}

    def _trace(self, tracing: Tracing) -> None:
        """Make spans; before the first partition is taken, for flows keep their channels."""
        self._intake.tracing = tracing
        self._channels = {
            scheme: TracedChannel(channel, tracing, self._clock) for scheme, channel in self._channels.items()
        }

    def slice_tenants(self, slices: Slices) -> None:
        """Some tenants have partitions of their own from now on."""
        self._intake.slices = slices

    def adopt(self, tenant: str) -> None:
        """The tenant has another policy: what is in memory goes by it from now on, too."""
        self.floor.adopt(tenant)

    def drop(self, partitions: Iterable[int]) -> None:
        """Let go of partitions at once: others own them. What is under way is attempted again there."""
        lost = frozenset(partitions).intersection(self.epochs)
        if not lost:
            return
        self._close(lost)
        for entry in self.floor.of_partitions(lost):
            self.floor.forget(entry)
        for index in lost:
            del self.epochs[index]
            self._partitions[index].lose()
        self._queues.lose(lost)

    def _close(self, partitions: Collection[int]) -> None:
        """Bring nothing more to memory, and start nothing more. What is asked for is still stored."""
        for index in partitions:
            self._partitions[index].close()
        self._lanes.leave(partitions)
        self._own()

    def _own(self) -> None:
        self._owned[:] = [partition for partition in self._partitions if partition.is_open]
        self._intake.own(self._owned)
        self._loader.tick()
        self._scribe.nudge()

    async def stop(self) -> bool:
        """Stop without losing anything: no new attempts, those under way end within the deadline, all outcomes are
        stored."""
        self.operations.close()
        self._agenda.stop()
        self.pauses.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        for channel in self._channels.values():
            if channel.holds:
                await channel.close()
        drained = await self.dispatcher.stop(self._settings.drain_s)
        for channel in self._channels.values():
            await channel.close()
        self._outcomes.flush()
        await self._scribe.stop()
        await self.store.close()
        return drained

    def _ring(self, entry: Entry) -> None:
        """The entry's time has come."""
        entry.phase = Phase.READY
        if entry.event.key is None:
            self.dispatcher.enqueue(entry)
        elif not self.floor.give_way(entry):
            self._lanes.enter(entry)

    def _given_back(self, entry: Entry) -> bool:
        """Whether the entry is to be attempted here again: not if its partition is being handed over, and not yet if
        its key is paused."""
        if not self._partitions[entry.event.partition].is_open:
            self.floor.forget(entry)
            return False
        return entry.event.key is None or not self._lanes.withholds(entry)

    def _near_at(self) -> int:
        """What is due until then belongs into memory."""
        return self._clock.now() + self._settings.lookahead_ms

    @property
    def trouble(self) -> tuple[StoreError, int] | None:
        """Why the store takes nothing, and for how many milliseconds already; None while all is well."""
        return self._scribe.trouble

    def overdue_ms(self) -> int:
        """How long the oldest due event has been waiting to be read, or for its turn, or for room; about."""
        now = self._clock.now()
        return max(now - min(self._loader.next_at() or now, self.floor.oldest_at()), 0)

    def _tick(self) -> None:
        """Time has passed: move the loader's front, and look after what is done now and then."""
        self._loader.tick()
        self._scribe.nudge()
        self.pauses.look()
        now = self._clock.now()
        lines_left = self._lanes.resume_left()
        if self._intake.needs_sequences and self.epochs:
            self._scribe.read(self._take_sequences)
        if now - self._swept_at >= _SWEEP_S * 1_000:
            self._swept_at = now
            self._scribe.read(self._sweep)
        if now - self._counted_at >= _COUNT_S * 1_000:
            self._counted_at = now
            self._scribe.read(self._count)
        seconds = max(self._loader.next_at() - now, self._settings.lookahead_ms) / 4_000
        self._tick_within(_TICK_S_LEFT if lines_left else seconds)

    def _tick_for(self, run_at: int) -> None:
        """An event lies before everything that the loader expected to find next."""
        self._tick_within(max(run_at - self._near_at(), 0) / 1_000)

    def _tick_within(self, seconds: float) -> None:
        """Often enough to load in time and to notice a clock that steps; seldom where nothing is near."""
        if self._ticker is not None:
            self._ticker.cancel()
        seconds = min(seconds, self._settings.watch_clock_s)
        self._ticker = asyncio.get_running_loop().call_later(seconds, self._tick)
        self.floor.expected_at = self._near_at() + int(seconds * 1_000) if seconds else 0

    async def _take_sequences(self) -> None:
        """Long before the present ones run out."""
        self._intake.count_from(await self.store.raise_fence({}))

    async def _count(self) -> None:
        """Look how many events there are, for those who watch."""
        self.counts = await self.store.counts()

    async def _sweep(self) -> None:
        """Forget records whose retention is over, some at a time."""
        if await self.store.sweep(self._clock.now(), _SWEEP_RECORDS) >= _SWEEP_RECORDS:
            self._scribe.read(self._sweep)

    def _channel_for(self, group: str) -> Channel:
        scheme = group.partition(":")[0]
        return self._channels.get(scheme) or self._nowhere

    def _broke(self, broken: BaseException) -> None:
        """The store failed: what is durable is unknown, so nothing more may be promised or started."""
        self.broken = broken
        self._agenda.stop()
        self.dispatcher.halt()
        self.operations.close()
        _log.critical("the engine stops: %s", broken)
        self._on_broken(broken)
