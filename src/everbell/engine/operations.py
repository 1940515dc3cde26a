"""The requests about events: schedule, look, change, cancel, ring now, redrive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from everbell.channels.port import SmallDesk
from everbell.clock import Clock
from everbell.core.allotment import Allotment
from everbell.core.amendment import Amendment, amended, has_change
from everbell.core.batch_item import ItemResult, check_alive, check_key, check_repeated, put_over, renews
from everbell.core.event import Event, Record, status_of
from everbell.core.ids import partition_in
from everbell.core.request import Ask, Handler
from everbell.core.retry import Outcome
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.core.time import INSTANT_MAX
from everbell.core.verdict import cancelled
from everbell.engine.batch_changes import BatchChanges
from everbell.engine.bulk import cancel_matching, redrive_matching
from everbell.engine.edits import Edits
from everbell.engine.forecast import Forecast, Forecaster
from everbell.engine.intake import Intake, Taken
from everbell.engine.key_view import view_key
from everbell.engine.meter import Meter
from everbell.engine.ordering import Lanes
from everbell.engine.partition import Partition
from everbell.engine.requests import (
    Allot,
    Amend,
    ApplyItems,
    Cancel,
    CancelMatching,
    CountEvents,
    Find,
    Get,
    GetForecast,
    GetLine,
    Redrive,
    RedriveMatching,
    Replace,
    Ring,
    Schedule,
    TryOut,
)
from everbell.engine.row_preparer import RowPreparer
from everbell.engine.seen import DraftResult, KeyLine, Seen
from everbell.engine.supervisor import Supervisor
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import StoreWriter
from everbell.entropy import Entropy
from everbell.errors import Conflict, EverbellError, NotOwner, Stopping, Throttled, VersionMismatch
from everbell.stores.port import Change, Counts, Finish, Move, Page, PreparedRows, Store

TRIALS_MAX = 16
"""How many dry runs a tenant may have in flight on a node: they take no slot of their target."""


class Operations:
    """Answers the requests of `engine.requests` that are about events."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        tenants: Tenants,
        partitions: Sequence[Partition],
        memory: WorkingSet,
        intake: Intake,
        writer: StoreWriter,
        lanes: Lanes,
        meter: Meter,
        ask: Ask,
        supervisor: Supervisor,
    ) -> None:
        """`ask` sends a request to these handlers. Requests about many events use it for each event."""
        self._store = store
        self._ask = ask
        self._clock = clock
        self._tenants = tenants
        self._memory = memory
        self._lanes = lanes
        self._intake = intake
        self._trials: Counter[str] = Counter()
        self.edits = Edits(store, partitions, memory, writer, lanes, supervisor)
        self._batch_changes = BatchChanges(clock, tenants, self.edits, intake, meter)
        self._row_preparer = RowPreparer(clock, entropy, intake.allot, self._schedule)
        self._meter = meter
        self._partitions = partitions
        self._closed = False

    def close(self) -> None:
        """Refuse all requests from now on."""
        self._closed = True

    def handlers(self) -> tuple[Handler, ...]:
        """The requests about events."""
        return (
            Schedule.by(self._schedule),
            Allot.by(self._allot),
            ApplyItems.by(self._apply),
            Get.by(self.get),
            Find.by(self._find),
            CountEvents.by(self._count),
            Replace.by(self._replace),
            Amend.by(self._amend),
            Cancel.by(self._cancel),
            CancelMatching.by(partial(cancel_matching, self._ask)),
            Ring.by(self._ring),
            Redrive.by(self._redrive),
            RedriveMatching.by(partial(redrive_matching, self._ask, self._clock)),
            GetLine.by(self._line),
            GetForecast.by(self._forecast),
            TryOut.by(self._try_out),
        )

    async def _schedule(self, request: Schedule) -> Sequence[DraftResult]:
        self._check_open()
        tenant, body = request.tenant, request.body
        if isinstance(body, SimpleBatch):
            return await self._row_preparer.schedule(tenant, body)
        if isinstance(body, PreparedRows):
            if not await self._intake.take_in(body):
                raise NotOwner("the places of these events are no longer valid; nothing of this request was stored")
            return ()
        results = await self._intake.schedule(tenant, body)
        return [
            result.id if isinstance(result, Event) else self._not_made(result, draft)
            for result, draft in zip(results, body, strict=True)
        ]

    async def _allot(self, request: Allot) -> Allotment | None:
        self._check_open()
        return self._intake.allot(request.count)

    async def _apply(self, request: ApplyItems) -> Sequence[ItemResult]:
        self._check_open()
        return await self._batch_changes.apply(request)

    async def get(self, request: Get) -> Seen:
        """The event as it is now. Raises `NotFound`."""
        return self.seen(await self.edits.find(request.tenant, request.id))

    async def _find(self, request: Find) -> tuple[list[Seen], str | None]:
        filter = request.filter
        if filter.key is not None and filter.partition is None:
            slices = self._intake.slices
            filter = replace(filter, partition=partition_in(slices, filter.tenant, filter.key, self._store.partitions))
        found = await self._store.find(filter, request.cursor, request.limit)
        return [self.seen(event) for event in found.events], found.cursor

    async def _count(self, request: CountEvents) -> Mapping[str, Counts]:
        return await self._store.counts()

    async def _replace(self, request: Replace) -> Seen:
        self._check_open()
        tenant, event_id, draft, version = request.tenant, request.id, request.draft, request.version
        while True:
            found = await self._store.get(tenant, event_id)
            reuses_ids = self._tenants.policy(tenant).reuse_ids
            if found is None or (isinstance(found, Record) and reuses_ids and renews(found, draft)):
                if version is not None:
                    raise VersionMismatch(f"there is no event {event_id!r}, so it has no version {version}")
                reused = () if found is None else (event_id,)
                result = (await self._intake.schedule(tenant, [draft], reused))[0]
                if isinstance(result, Taken):
                    continue  # Another request made the event in the meantime: then this one replaces it.
                if isinstance(result, EverbellError):
                    raise result
                return Seen.of(result, "scheduled", created=True)
            if isinstance(found, Event):
                check_key(found, draft)
            elif reuses_ids:
                return self.seen(found)
            # The key is checked again: another event may have the id by now.
            put = partial(put_over, draft=draft, reuses_ids=reuses_ids)
            return await self._change(tenant, event_id, put, version)

    async def _amend(self, request: Amend) -> Seen:
        self._check_open()
        return await self._amended(request.tenant, request.id, request.amendment, request.version)

    async def _cancel(self, request: Cancel) -> Seen:
        self._check_open()
        keep_ms = self._tenants.policy(request.tenant).retention_ms

        def edit(event: Event) -> Change:
            now = self._clock.now()
            return Finish(event, cancelled(event, now), now + keep_ms, guarded=True)

        change = await self.edits.make(request.tenant, request.id, edit, request.version, cancels=True)
        assert isinstance(change, Finish)
        self._meter.count_cancelled(request.tenant)
        return Seen.of(change.record, "cancelled")

    async def _ring(self, request: Ring) -> Seen:
        self._check_open()
        return await self._amended(request.tenant, request.id, Amendment(run_at=self._clock.now()), None)

    async def _redrive(self, request: Redrive) -> Seen:
        self._check_open()

        def edit(event: Event) -> Change:
            if event.state != "dead":
                raise Conflict(f"the event is {status_of(event)}, not dead")
            run_at = min(self._clock.now() + request.delay_ms, INSTANT_MAX)
            if event.repeat is None and event.expires_ms is not None and run_at > event.due_at + event.expires_ms:
                # An attempt would end the event as expired. A recurring event goes on with its next occurrence.
                raise Conflict("its time (expires) is over, so it would end without an attempt; schedule another")
            return Move(
                event,
                replace(event, state="scheduled", run_at=run_at, attempt_count=0, reason=None),
                guarded=True,
            )

        change = await self.edits.make(request.tenant, request.id, edit, None, frees=False)
        assert isinstance(change, Move)
        return self.seen(change.after)

    async def _line(self, request: GetLine) -> KeyLine:
        tenant, key = request.tenant, request.key
        partition = self._intake.partition_of_key(tenant, key)
        head, waiting, is_more = await view_key(self._store, self._lanes, self._memory, partition, tenant, key)
        return KeyLine(None if head is None else self.seen(head), waiting, is_more)

    async def _forecast(self, request: GetForecast) -> Forecast:
        async def page(partition: int, after: int, until_at: int, limit: int) -> Page:
            return await self.edits.read(lambda: self._store.page(partition, after, until_at, limit), lambda page: page)

        tenant, per_ms, count = request.tenant, request.per_ms, request.count
        return await Forecaster(self._store, page, tenant, self._clock.now(), per_ms, count).run()

    async def _try_out(self, request: TryOut) -> Outcome:
        self._check_open()
        event = await self.edits.find(request.tenant, request.id)
        if isinstance(event, Record):
            raise Conflict(f"the event is {event.status}; its payload is no longer kept")
        flow = self._memory.flows.look_up(event)
        if flow.channel.holds:
            raise Conflict("a queue cannot be tried out: nothing is sent until a worker asks")
        tenant = event.tenant
        self._intake.quotas.check_rate(tenant)
        if self._trials[tenant] >= TRIALS_MAX:
            raise Throttled(f"tenant {tenant!r} has {TRIALS_MAX} dry runs in flight", 1)
        self._intake.quotas.spend(tenant)
        trial = _Trial(event, flow.tenant, self._partitions[event.partition].epoch)
        self._trials[tenant] += 1
        try:
            flow.channel.start([trial])
            return await trial.outcome
        finally:
            self._trials[tenant] -= 1
            self._trials += Counter()  # Tenants without dry runs are removed.

    async def _amended(self, tenant: str, event_id: str, amendment: Amendment, version: int | None) -> Seen:
        def after(event: Event) -> Event:
            if has_change(event, amendment):
                raise _AlreadyMade(event)
            check_alive(event)
            return amended(event, amendment, self._clock.now())

        return await self._change(tenant, event_id, after, version, frees=amendment.moves)

    async def _change(
        self,
        tenant: str,
        event_id: str,
        after: Callable[[Event], Event],
        version: int | None,
        *,
        frees: bool = True,
    ) -> Seen:
        """Store an event as `after` makes it."""

        def edit(event: Event) -> Change:
            return Move(event, after(event), guarded=True)

        try:
            change = await self.edits.make(tenant, event_id, edit, version, frees=frees)
        except _AlreadyMade as made:
            return self.seen(made.event)
        assert isinstance(change, Move)
        self._meter.count_occurrences(change.before.course, change.after.course)
        return self.seen(change.after)

    def _not_made(self, result: Taken | EverbellError, draft: Draft) -> Seen | EverbellError:
        if isinstance(result, EverbellError):
            return result
        existing = result.existing
        try:
            check_repeated(existing, draft)
        except Conflict as taken:
            return taken.as_value()
        return self.seen(existing)

    def seen(self, event: Event | Record) -> Seen:
        """An event with its status, as users see it."""
        if isinstance(event, Record):
            return Seen.of(event, event.status)
        entry = self._memory.entries.get(event.sequence)
        return Seen.of(event, "delivering" if entry is not None and entry.in_flight else status_of(event))

    def _check_open(self) -> None:
        if self._closed:
            raise Stopping("Everbell is stopping; nothing of this request was stored")


class _AlreadyMade(Exception):
    """The event has the change that was asked for."""

    def __init__(self, event: Event) -> None:
        super().__init__(event.id)
        self.event = event


class _Trial:
    """A delivery that is not recorded."""

    attempt = 1
    desk = SmallDesk()

    def __init__(self, event: Event, tenant: Tenant, epoch: int) -> None:
        self.event = event
        self.tenant = tenant
        self.epoch = epoch
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def begin(self) -> bool:
        return True

    def settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def give_back(self) -> None:
        raise AssertionError("only channels that hold deliveries give them back, and they are not tried out")
