"""The engine of one node: the parts of this package, put together.

    Intake ──► StoreWriter ──► Store            Outcomes ──► StoreWriter
                 │                                  ▲
            WorkingSet ◄── Loader                   │
                 │                                  │
               Agenda ──► Lanes ──► Dispatcher ──► Channel

The caller passes clock, randomness, store and channels, so the same engine runs in production, in tests on virtual time
and in a simulation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from everbell.channels.port import Channel
from everbell.channels.queue import QueueChannel
from everbell.clock import Clock
from everbell.core.ids import Slices, make_ids
from everbell.core.request import Handlers, Request
from everbell.core.tenant import Tenants
from everbell.engine.account import Budget
from everbell.engine.adoption import Adoption
from everbell.engine.agenda import Agenda
from everbell.engine.attempt_listeners import AttemptListeners
from everbell.engine.blocked_keys import KeyLister
from everbell.engine.channel_table import ChannelTable
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase, until_settled
from everbell.engine.explainer import Explainer
from everbell.engine.flow_table import FlowTable
from everbell.engine.intake import Intake
from everbell.engine.kept_ends import KeptEnds
from everbell.engine.kills import Kills
from everbell.engine.kills_in_force import KillsInForce
from everbell.engine.leases import Leases
from everbell.engine.loader import Loader
from everbell.engine.meter import Meter
from everbell.engine.notices import Notices
from everbell.engine.observer import Observer
from everbell.engine.operations import Operations
from everbell.engine.ordering import Lanes
from everbell.engine.outcomes import Outcomes
from everbell.engine.partition import Partition
from everbell.engine.pauses import Pauses, recall
from everbell.engine.quotas import Quotas
from everbell.engine.request_routes import EngineRequest
from everbell.engine.settings import EngineSettings
from everbell.engine.silent_attempts import SilentAttempts
from everbell.engine.stall_watch import StallWatch
from everbell.engine.supervisor import Supervisor
from everbell.engine.turns import Turns, postpone
from everbell.engine.upkeep import Upkeep
from everbell.engine.working_set import MemoryListeners, WorkingSet
from everbell.engine.write_queue import failing
from everbell.engine.writer import StoreWriter
from everbell.entropy import Entropy
from everbell.errors import EverbellError, StoreError, StoreUnavailable
from everbell.stores.port import Store

if TYPE_CHECKING:
    from everbell.tracing import Tracing

_log = logging.getLogger("everbell.engine")

A = TypeVar("A")


class Engine:
    """The life of events, from a checked draft to a recorded end. Use `Engine.start`, `ask`, then `stop`."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[str, Channel],
        tenants: Tenants,
        clock: Clock,
        entropy: Entropy,
        settings: EngineSettings,
        on_broken: Callable[[BaseException], None],
        tracing: Tracing | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.store = store
        self.tenants = tenants
        self.epochs: dict[int, int] = {}
        """The partitions that this node owns, each with its epoch."""
        self.meter = Meter()
        self._clock = clock
        self._supervisor = supervisor = Supervisor(self._broke)
        self._queues = queues = QueueChannel(clock, entropy, supervisor, turns)
        self._channels = ChannelTable({**channels, "queue": queues}, clock, tracing)
        self._settings = settings
        self._on_broken = on_broken
        self._partitions = partitions = [Partition(index, tenants) for index in range(store.partitions)]
        self._owned: list[Partition] = []
        self._kept = KeptEnds(clock)
        self._writer = writer = StoreWriter(store, self.epochs, supervisor, self.drop, self._kept.keep_all)
        self._agenda = Agenda(clock, supervisor, self._ring, settings.watch_clock_s, turns.turn_at if turns else None)
        self._postpone = None if turns is None else partial(postpone, turns, self._agenda)
        in_force = KillsInForce()
        attempts = AttemptListeners(
            # The outcomes need the dispatcher, so they are built after it.
            settled=lambda entries, outcome: self._outcomes.settled(entries, outcome),
            expired=lambda entry, instead: self._outcomes.expired(entry, instead),
            unfit=lambda entry, fault: self._outcomes.unfit(entry, fault),
            given_back=self._given_back,
            started=self.meter.count_started,
            recall=partial(recall, queues),
            postponed=self._postpone,
            begun=None if turns is None else turns.begun,
        )
        self.dispatcher = Dispatcher(clock, self.epochs, settings.in_flight, attempts, supervisor, in_force)
        budget = Budget(settings.memory_bytes)
        listeners = MemoryListeners(writer.wake, lambda run_at: self._upkeep.tick_for(run_at))
        flows = FlowTable(
            budget, tenants, self._channels.channel_of, self._channels.lacks_handler, lambda: self.pauses.trim_soon()
        )
        self.memory = memory = WorkingSet(
            partitions, budget, self._agenda, self.dispatcher, flows, self._near_at, listeners
        )
        self._lanes = lanes = Lanes(store, clock, writer, self.dispatcher, memory, self._agenda, partitions)
        self._loader = Loader(
            store, clock, partitions, self._owned, memory, settings.lookahead_ms, settings.page_events
        )
        notices = Notices(clock)
        quotas = Quotas(tenants, clock, store.counts, notices, lambda: self.observer.history.counts)
        ids = make_ids if turns is None else turns.make_ids
        self._intake = intake = Intake(
            clock, entropy, writer, memory, self.meter, partitions, quotas, store.row_maker, tracing, ids, in_force
        )
        self._outcomes = outcomes = Outcomes(
            clock, entropy, writer, memory, self._lanes, self.meter, intake, notices, supervisor, self._kept
        )
        self._operations = operations = Operations(
            store, clock, entropy, tenants, partitions, memory, intake, writer, lanes, self.meter, self.ask, supervisor
        )
        self.adoption = Adoption(intake, operations.edits)
        self.pauses = Pauses(clock, memory, self._lanes, self.dispatcher, queues, supervisor, settings.handler_check_s)
        self.observer = Observer(store, clock, memory, queues, self.pauses, self.meter, notices)
        state = (store, clock, partitions, memory, lanes, self.dispatcher, writer, self.pauses, queues)
        explainer = Explainer(*state, operations.get)
        key_lister = KeyLister(store, partitions, self._lanes, memory, operations.seen)
        self.kills = kills = Kills(
            in_force,
            clock,
            tenants,
            self.epochs,
            operations.edits,
            self.meter,
            self.ask,
            supervisor,
            searches=not turns,
        )
        parts = (Leases(queues, writer, outcomes.flush), self.observer, explainer, kills, key_lister)
        others = (each for part in parts for each in part.handlers())
        self._handlers = Handlers(*kills.watching(operations.handlers()), *others, complete=EngineRequest)
        self.stalls = StallWatch(clock, self._agenda, self.dispatcher, memory, self._loader, writer)
        self._upkeep = Upkeep(
            store,
            clock,
            writer,
            memory,
            self._loader,
            self._lanes,
            intake,
            self.pauses,
            self.observer,
            SilentAttempts(clock, self.dispatcher, memory.entries.values()),
            self.stalls,
            supervisor,
            settings.lookahead_ms,
            settings.watch_clock_s,
        )

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
        turns: Turns | None = None,
    ) -> Engine:
        """Start with the partitions of `epochs`. Without it the engine is the only node, and takes all partitions.

        The keys of `channels` are the schemes of their targets. `tracing` makes spans for schedules and attempts.
        `turns` is for events that other nodes hold as well.
        """
        settings = settings or EngineSettings()
        broken = on_broken or (lambda error: None)
        engine = cls(store, channels, tenants, clock, entropy, settings, broken, tracing, turns)
        engine._writer.start(engine._loader.next_read, lambda: bool(engine.memory.starved), engine._outcomes.flush)
        try:
            await engine.take(dict.fromkeys(range(store.partitions), store.epoch + 1) if epochs is None else epochs)
            engine._upkeep.start()
        except BaseException:
            await engine._writer.stop()
            raise
        return engine

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        """Answer an `EngineRequest`."""
        return self._supervisor.answer(self._handlers.ask, request)

    async def take(self, epochs: Mapping[int, int], *, quiet_ms: int = 0) -> None:
        """Take partitions: raise the fence, read which keys are blocked, and start to load events.

        For up to `quiet_ms` the last owner may still be sending events that are due, or due by its clock. A key with
        such an event waits for as long as an attempt of its tenant may last. Raises `Fenced` if another node took a
        partition under a higher epoch, and `StoreUnavailable`. Then no partition is taken.
        """
        if epochs:
            await self._supervisor.answer(partial(self._take, quiet_ms=quiet_ms), epochs)

    async def _take(self, epochs: Mapping[int, int], *, quiet_ms: int) -> None:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sequence: int | None = None

        async def operation() -> None:
            nonlocal sequence
            try:
                if sequence is None:
                    sequence = await self.store.raise_fence(epochs)
                await self._kept.store(self.store, epochs)
                for index in epochs:
                    await self._lanes.recover(index)
            except EverbellError as refused:
                if sequence is not None and isinstance(refused, StoreUnavailable):
                    raise  # The store writer retries the operation: the same fence cannot be raised twice.
                if not taken.done():
                    taken.set_exception(refused)
                if sequence is not None:
                    # This ends the engine: the fence is raised, so no try could take these partitions again.
                    raise
                return
            if taken.done():
                return  # The caller was cancelled.
            now, elapsed_ms = self._clock.now(), self._clock.elapsed_ms()
            for index, epoch in epochs.items():
                self._partitions[index].take(epoch, now, elapsed_ms, quiet_ms)
            self.epochs.update(epochs)
            self._intake.count_from(sequence)
            self._own()
            self.kills.search_again()
            taken.set_result(None)

        # Outcomes from the last time that this node owned the partitions are stored or refused before the first read.
        self._outcomes.flush()
        self._writer.read(operation, failing(taken))
        await taken

    async def release(self, partitions: Collection[int], deadline_s: float) -> bool:
        """Give up partitions: start no more of their attempts, wait for those in flight, and store the outcomes.

        Returns whether all attempts ended in time. In any case this node writes nothing to the partitions afterwards.
        """
        return await self._supervisor.answer(partial(self._release, deadline_s=deadline_s), partitions)

    async def _release(self, partitions: Collection[int], *, deadline_s: float) -> bool:
        with self._supervisor.critical():
            leaving = frozenset(partitions).intersection(self.epochs)
            sending = self._lanes.sending(leaving)
            self._close(leaving)
            busy = []
            for entry in self.memory.of_partitions(leaving):
                if entry.in_flight or entry.phase is Phase.SETTLING:
                    busy.append(until_settled(entry))
                else:
                    self.memory.forget(entry)
            try:
                async with asyncio.timeout(deadline_s):
                    await asyncio.gather(*busy)
                    for entry in sending:
                        while entry.in_flight:  # The event was cancelled, but its request is still in flight.
                            await until_settled(entry)
                    self._outcomes.flush()
                    await self._writer.caught_up()
            except TimeoutError:
                pass
            left = self.memory.of_partitions(leaving)
            self.drop(leaving)
            return not left and not any(entry.in_flight for entry in sending)

    def busy(self, partitions: Container[int]) -> set[int]:
        """The partitions that have attempts in flight or changes that are being stored."""
        entries = [*self.memory.of_partitions(partitions), *self._lanes.sending(partitions)]
        return {entry.event.partition for entry in entries if entry.in_flight or entry.phase is Phase.SETTLING}

    def slice_tenants(self, slices: Slices) -> None:
        self._intake.slices = slices

    def adopt(self, tenant: str) -> None:
        """Apply the new policy of a tenant to its events in memory."""
        with self._supervisor.critical():
            for flow in self.memory.flows.adopt(tenant):
                self.dispatcher.resume(flow)

    def drop(self, partitions: Iterable[int]) -> None:
        """Drop partitions that other nodes own now. The new owners repeat the attempts in flight."""
        lost = frozenset(partitions).intersection(self.epochs)
        if not lost:
            return
        with self._supervisor.critical():
            self._close(lost)
            for entry in self.memory.of_partitions(lost):
                self.memory.forget(entry)
            for index in lost:
                del self.epochs[index]
                self._partitions[index].lose()
            self._queues.lose(lost)

    def _close(self, partitions: Collection[int]) -> None:
        """Load no more events of these partitions, and start no attempts. New events and changes are still stored."""
        for index in partitions:
            self._partitions[index].close()
        self._lanes.drop(partitions)
        self._own()

    def _own(self) -> None:
        self._owned[:] = [partition for partition in self._partitions if partition.is_open]
        self._intake.own(self._owned)
        self._loader.tick()
        self._writer.wake()

    async def stop(self) -> bool:
        """Stop without losing anything: wait for the attempts in flight, up to the deadline, and store all outcomes.

        Returns whether all attempts ended in time.
        """
        self._operations.close()
        self._agenda.stop()
        self.pauses.stop()
        self.kills.stop()
        self._upkeep.stop()
        await self._channels.close_holding()
        # A broken engine stores no outcomes, so it waits for none.
        drained = self.broken is None and await self.dispatcher.stop(self._settings.drain_s)
        await self._channels.close()
        self._outcomes.flush()
        await self._writer.stop()
        await self.store.close()
        return drained

    def _ring(self, entry: Entry) -> None:
        """Let a due entry line up in its key, or go to the dispatcher if it has no key."""
        if self._postpone is not None and self._postpone(entry, self._clock.now()):
            return
        entry.phase = Phase.READY
        if entry.event.key is None:
            self.dispatcher.enqueue(entry)
        elif not self.memory.yield_to_skipped(entry):
            self._lanes.enter(entry)

    def _given_back(self, entry: Entry) -> bool:
        """Whether to attempt the entry again now: not if its partition is being handed over or its key is paused."""
        if not self._partitions[entry.event.partition].is_open:
            self.memory.forget(entry)
            return False
        return entry.event.key is None or not self._lanes.holds_back(entry)

    def _near_at(self) -> int:
        """The end of the near future: events that are due before belong in memory."""
        return self._clock.now() + self._settings.lookahead_ms

    @property
    def broken(self) -> BaseException | None:
        """The error that ended the engine."""
        return self._supervisor.fault

    @property
    def trouble(self) -> tuple[StoreError, int] | None:
        """The error because of which the store cannot be used, and its age in milliseconds. None: the store works."""
        return self._writer.trouble

    def overdue_ms(self) -> int:
        """About how long the oldest due event has waited to be loaded, started or leased."""
        now = self._clock.now()
        return max(now - min(self._loader.next_at() or now, self.observer.oldest_at()), 0)

    def _broke(self, broken: BaseException) -> None:
        """Stop, because the store failed, or the state in memory may be wrong: nothing may be acknowledged any more."""
        self._agenda.stop()
        self.dispatcher.halt()
        self._operations.close()
        # The message of an `EverbellError` says everything; others need their traceback.
        trace = None if isinstance(broken, EverbellError) else broken
        _log.critical("the engine stops: %s", broken if trace is None else repr(broken), exc_info=trace)
        self._writer.fail(broken)
        self._on_broken(broken)
