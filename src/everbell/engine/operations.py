"""What a user may ask of the engine: schedule, look, change, cancel, ring now, redrive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from everbell.channels.port import SmallDesk
from everbell.clock import Clock
from everbell.core.allotment import Allotment
from everbell.core.amendment import amended
from everbell.core.event import Event, Record, is_repeated, status_of
from everbell.core.ids import partition_in
from everbell.core.plain import Plain
from everbell.core.retry import Outcome
from everbell.core.spec import Draft, event_of
from everbell.core.tenant import Tenant, Tenants
from everbell.core.time import INSTANT_MAX
from everbell.core.verdict import cancelled
from everbell.engine.bulk import Redrive, died_by, in_bulk, spread
from everbell.engine.edits import Edits
from everbell.engine.floor import Floor
from everbell.engine.forecast import Forecast, Forecaster
from everbell.engine.intake import Intake, Taken
from everbell.engine.lanes import Lanes
from everbell.engine.lines import look_at
from everbell.engine.meter import Meter
from everbell.engine.parceller import Parceller
from everbell.engine.partition import Partition
from everbell.engine.port import KeyLine, Seen
from everbell.engine.scribe import Scribe
from everbell.entropy import Entropy
from everbell.errors import Conflict, EverbellError, Stopping, VersionMismatch
from everbell.stores.parcel import Parcel
from everbell.stores.port import Change, Counts, Filter, Finish, Move, Page, Store


class Operations:
    """Every method may raise `Stopping`, and what its docstring names."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        tenants: Tenants,
        partitions: Sequence[Partition],
        floor: Floor,
        intake: Intake,
        scribe: Scribe,
        lanes: Lanes,
        meter: Meter,
    ) -> None:
        self.store = store
        self._clock = clock
        self._tenants = tenants
        self._floor = floor
        self._lanes = lanes
        self._intake = intake
        self._edits = Edits(store, partitions, floor, scribe, lanes)
        self._parceller = Parceller(clock, entropy, intake.allot, intake.take_in, self.schedule_ids)
        self._meter = meter
        self._partitions = partitions
        self._closed = False

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True

    async def schedule(self, tenant: str, drafts: Sequence[Draft]) -> list[Seen | EverbellError]:
        """Store new events; for each draft in turn what it became, or why it was refused.

        A client-given id that is in use is no error when the event asks for the same: then it is a repeated request.
        """
        self._check_open()
        results = await self._intake.schedule(tenant, drafts)
        return [
            Seen(result, "scheduled", created=True) if isinstance(result, Event) else self._not_made(result, draft)
            for result, draft in zip(results, drafts, strict=True)
        ]

    async def schedule_ids(self, tenant: str, drafts: Sequence[Draft]) -> list[str | Seen | EverbellError]:
        """The same, for callers who want to know no more of an event that was made than its id."""
        self._check_open()
        results = await self._intake.schedule(tenant, drafts)
        return [
            result.id if isinstance(result, Event) else self._not_made(result, draft)
            for result, draft in zip(results, drafts, strict=True)
        ]

    async def schedule_plain(self, tenant: str, plain: Plain) -> Sequence[str | Seen | EverbellError]:
        """The same for plain events."""
        self._check_open()
        return await self._parceller.schedule(tenant, plain)

    async def allot(self, count: int) -> Allotment | None:
        """Places for new plain events. None: there are none to give, and they have to come as drafts."""
        self._check_open()
        return self._intake.allot(count)

    async def take_in(self, parcel: Parcel) -> bool:
        """Store events at such places. False: nothing was stored, and they have to come as drafts."""
        self._check_open()
        return await self._intake.take_in(parcel)

    async def get(self, tenant: str, event_id: str) -> Seen:
        """Raises `NotFound`."""
        return self._seen(await self._edits.find(tenant, event_id))

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> tuple[list[Seen], str | None]:
        """One page, and the cursor of the next."""
        if filter.key is not None and filter.partition is None:
            slices = self._intake.slices
            filter = replace(filter, partition=partition_in(slices, filter.tenant, filter.key, self.store.partitions))
        found = await self.store.find(filter, cursor, limit)
        return [self._seen(event) for event in found.events], found.cursor

    async def counts(self) -> Mapping[str, Counts]:
        return await self.store.counts()

    async def replace(self, tenant: str, event_id: str, draft: Draft, version: int | None) -> Seen:
        """Create the event, or put the draft in its place. Raises `Conflict` when it ended, `VersionMismatch`."""
        self._check_open()
        while True:
            found = await self.store.get(tenant, event_id)
            if found is None:
                if version is not None:
                    raise VersionMismatch(f"there is no event {event_id!r}, so it has no version {version}")
                result = (await self._intake.schedule(tenant, [draft]))[0]
                if isinstance(result, Taken):
                    continue  # Somebody made it in the meantime: then this replaces it.
                if isinstance(result, EverbellError):
                    raise result
                return Seen(result, "scheduled", created=True)
            if isinstance(found, Event) and found.key != draft.key:
                raise Conflict("an event's key cannot be changed; cancel it and schedule another")
            return await self._change(tenant, event_id, _replacement(draft), version)

    async def change(self, tenant: str, event_id: str, fields: Mapping[str, Any], version: int | None) -> Seen:
        """Change some fields of `Event`. Raises `NotFound`, `Conflict`, `VersionMismatch`."""
        self._check_open()
        return await self._change(tenant, event_id, fields, version)

    async def cancel(self, tenant: str, event_id: str, version: int | None = None) -> Seen:
        """No attempt starts after this returns.

        Raises `NotFound`, `Conflict` when it ended already, `VersionMismatch`.
        """
        self._check_open()
        keep_ms = self._tenants.policy(tenant).retention_ms

        def edit(event: Event) -> Change:
            now = self._clock.now()
            return Finish(event, cancelled(event, now), now + keep_ms, guarded=True)

        change = await self._edits.make(tenant, event_id, edit, version, cancels=True)
        assert isinstance(change, Finish)
        self._meter.cancelled += 1
        return Seen(change.record, "cancelled")

    async def cancel_matching(self, filter: Filter) -> int:
        """Cancel all that match; returns how many were."""
        return await in_bulk(self.find, filter, lambda event: self.cancel(filter.tenant, event.id))

    async def ring(self, tenant: str, event_id: str) -> Seen:
        """Make the event due at once. Raises `NotFound`, `Conflict`."""
        self._check_open()
        return await self._change(tenant, event_id, {"run_at": self._clock.now()}, None)

    async def redrive(self, tenant: str, event_id: str, delay_ms: int = 0) -> Seen:
        """Give a dead event a new set of attempts. Raises `NotFound`, `Conflict` when it is not dead."""
        self._check_open()

        def edit(event: Event) -> Change:
            if event.state != "dead":
                raise Conflict(f"the event is {status_of(event)}, not dead")
            run_at = min(self._clock.now() + delay_ms, INSTANT_MAX)
            if event.repeat is None and event.expires_ms is not None and run_at > event.due_at + event.expires_ms:
                # The attempt would find that, and end the event. One that repeats goes on with its next occurrence.
                raise Conflict("its time (expires) is over, so it would end without an attempt; schedule another")
            return Move(
                event,
                replace(event, state="scheduled", run_at=run_at, attempt_count=0, reason=None),
                guarded=True,
            )

        change = await self._edits.make(tenant, event_id, edit, None, frees=False)
        assert isinstance(change, Move)
        return self._seen(change.after)

    async def redrive_matching(self, filter: Filter, per_s: float | None = None) -> int:
        """Redrive all dead events that match, at once or so many a second; returns how many were."""
        return await self.redrive_by(self.redrive, filter, per_s)

    async def redrive_by(self, redrive: Redrive, filter: Filter, per_s: float | None) -> int:
        """The same, where another way than ours leads to the owner of an event."""
        delay_ms = spread(per_s)
        return await in_bulk(
            self.find,
            filter,
            lambda event: redrive(filter.tenant, event.id, delay_ms()),
            died_by(self._clock.now()),
        )

    async def line(self, tenant: str, key: str) -> KeyLine:
        """Who is next in a key, and how many wait. Raises `NotOwner`."""
        partition = self._intake.partition_of_key(tenant, key)
        head, waiting, is_more = await look_at(self.store, self._lanes, self._floor, partition, tenant, key)
        return KeyLine(None if head is None else self._seen(head), waiting, is_more)

    async def forecast(self, tenant: str | None, per_ms: int, count: int) -> Forecast:
        """How many events are due in each span of time ahead, and what is overdue."""

        async def page(partition: int, after: int, until_at: int, limit: int) -> Page:
            return await self._edits.read(lambda: self.store.page(partition, after, until_at, limit), lambda page: page)

        return await Forecaster(self.store, page, tenant, self._clock.now(), per_ms, count).run()

    async def try_out(self, tenant: str, event_id: str) -> Outcome:
        """Make one attempt that changes nothing. Raises `NotFound`, `Conflict`."""
        self._check_open()
        event = await self._edits.find(tenant, event_id)
        if isinstance(event, Record):
            raise Conflict(f"the event is {event.status}; its payload is no longer kept")
        flow = self._floor.flow_of(event)
        if flow.channel.holds:
            raise Conflict("a queue cannot be tried out: nothing is sent until a worker asks")
        trial = _Trial(event, flow.tenant, self._partitions[event.partition].epoch)
        flow.channel.start([trial])
        return await trial.outcome

    async def _change(self, tenant: str, event_id: str, fields: Mapping[str, Any], version: int | None) -> Seen:
        def edit(event: Event) -> Change:
            if event.state == "dead":
                raise Conflict("the event is dead; redrive it, or cancel it and schedule another")
            return Move(event, amended(event, fields, self._clock.now()), guarded=True)

        frees = not fields.keys().isdisjoint(("due_at", "shift_ms", "paused"))
        change = await self._edits.make(tenant, event_id, edit, version, frees=frees)
        assert isinstance(change, Move)
        self._meter.fared(change.before.course, change.after.course)
        return self._seen(change.after)

    def _not_made(self, result: Taken | EverbellError, draft: Draft) -> Seen | EverbellError:
        if isinstance(result, EverbellError):
            return result
        existing = result.existing
        if is_repeated(existing, event_of(draft, existing.id, existing.tenant)):
            return self._seen(existing)
        if isinstance(existing, Record):
            ended = f"the id {existing.id!r} belongs to another event that is {existing.status} already"
            return Conflict(f"{ended}, and stays taken for the tenant's retention; choose another id")
        return Conflict(f"the id {existing.id!r} is taken by another event; use PUT to replace it")

    def _seen(self, event: Event | Record) -> Seen:
        if isinstance(event, Record):
            return Seen(event, event.status)
        entry = self._floor.entries.get(event.sequence)
        return Seen(event, "delivering" if entry is not None and entry.under_way else status_of(event))

    def _check_open(self) -> None:
        if self._closed:
            raise Stopping("Everbell is stopping; nothing of this request was stored")


class _Trial:
    """A delivery that nobody records."""

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


def _replacement(draft: Draft) -> dict[str, Any]:
    return {
        "due_at": draft.due_at,
        "to": draft.to,
        "payload": draft.payload,
        "content_type": draft.content_type,
        "headers": draft.headers,
        "tags": draft.tags,
        "retry": draft.retry,
        "repeat": draft.repeat,
        "expires_ms": draft.expires_ms,
        "occurrence": 1,
        "course": None,
    }
