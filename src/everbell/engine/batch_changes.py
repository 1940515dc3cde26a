"""Batches with items that replace or cancel events.

All items of a part are read together and stored in one or two writes: one for the changed events, one for the new ones,
which mostly share an fsync. Items of one id are one change, so no attempt can start between them.

A part is small while the size of the stored events is unknown, because they are all in memory until the write ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import TypeVar

from everbell.clock import Clock
from everbell.core.batch_item import (
    BatchItem,
    Changed,
    ItemDone,
    ItemResult,
    Made,
    on_event,
    on_nothing,
    on_record,
)
from everbell.core.event import Event, Record
from everbell.core.spec import Draft
from everbell.core.tenant import Tenants
from everbell.core.verdict import cancelled
from everbell.engine.edits import Edits, TakenEntry
from everbell.engine.entry import Entry, Phase
from everbell.engine.intake import Intake, Taken
from everbell.engine.meter import Meter
from everbell.engine.requests import ApplyItems
from everbell.engine.writer import GROUP_CHANGES_MAX
from everbell.errors import BeingDelivered, Conflict, EverbellError, InvalidInput, NotOwner
from everbell.stores.port import Change, Finish, Move

_PART_ITEMS_MIN = 64
_PART_BYTES = 4 * 1024 * 1024
_GROWTH = 4

R = TypeVar("R")

# The decision on the items of one id: a change to store, an entry to wait for, an event to create, or their results.
Decision = TakenEntry | Entry | Made | Sequence[ItemResult]


class BatchChanges:
    """Applies batches to events in the store."""

    def __init__(self, clock: Clock, tenants: Tenants, edits: Edits, intake: Intake, meter: Meter) -> None:
        self.clock = clock
        self.tenants = tenants
        self.edits = edits
        self.intake = intake
        self.meter = meter
        self._part_items = _PART_ITEMS_MIN

    async def apply(self, request: ApplyItems) -> Sequence[ItemResult]:
        """Apply the items part by part. After a failure that a retry may mend, later items of the same id are refused
        with the same error, so that a retry of all refused items keeps the order.
        """
        results = _ItemResults(request.items)
        start, end = 0, len(request.items)
        while start < end:
            places = range(start, min(start + self._part_items, end))
            start = places.stop
            lines: dict[str | None, list[int]] = {}
            for place in results.free(places):
                lines.setdefault(request.items[place].id, []).append(place)
            while lines:
                lines = await _ItemRound(self, request, lines, results).run()
        return results.all()

    def keep_pace(self, found: Sequence[Event | Record | None]) -> None:
        """Choose the size of the next part by the size of the events of this one."""
        size_bytes = sum(len(event.payload) for event in found if isinstance(event, Event))
        if size_bytes * _GROWTH < _PART_BYTES:
            self._part_items = min(self._part_items * _GROWTH, GROUP_CHANGES_MAX)
        elif size_bytes > _PART_BYTES:
            self._part_items = max(self._part_items // _GROWTH, _PART_ITEMS_MIN)


class _ItemRound:
    """One read and one write for the items of some ids. `lines` has the places of their items by id; items without an
    id are new events.
    """

    def __init__(
        self, part_of: BatchChanges, request: ApplyItems, lines: dict[str | None, list[int]], results: _ItemResults
    ) -> None:
        self._clock = part_of.clock
        self._tenants = part_of.tenants
        self._edits = part_of.edits
        self._intake = part_of.intake
        self._meter = part_of.meter
        self._keep_pace = part_of.keep_pace
        self._tenant = request.tenant
        self._items = request.items
        self._nameless = lines.pop(None, [])
        self._lines = {event_id: places for event_id, places in lines.items() if event_id is not None}
        self._results = results
        self._effects: dict[str, Changed] = {}
        # The items for another round.
        self._left: dict[str | None, list[int]] = {}
        # The ids of ended events that new ones take over.
        self._renewed: set[str] = set()

    async def run(self) -> dict[str | None, list[int]]:
        """Apply the items as far as one write can, and return the rest."""
        taken: dict[str, TakenEntry] = {}
        made: dict[str, Made] = {}
        busy: list[Entry] = []
        for event_id, decision in (await self._decisions()).items():
            if isinstance(decision, TakenEntry):
                taken[event_id] = decision
            elif isinstance(decision, Made):
                made[event_id] = decision
            elif isinstance(decision, Entry):
                busy.append(decision)
                self._left[event_id] = self._lines[event_id]
            else:
                self._put_first(event_id, decision)
        creating = asyncio.ensure_future(self._create(made))
        try:
            # Not a task: one that is cancelled before it starts would leave its entries taken for ever.
            await self._change(taken)
            await creating
        finally:
            creating.cancel()
        for entry in busy:
            await self._edits.settled(entry)
        return self._left

    async def _decisions(self) -> dict[str, Decision]:
        if not self._lines:
            return {}
        try:
            decided = await self._edits.read_and_take(self._tenant, list(self._lines), self._decide_all)
        except EverbellError as failed:
            return {event_id: [failed.as_value()] * len(places) for event_id, places in self._lines.items()}
        return dict(zip(self._lines, decided, strict=True))

    def _decide_all(self, found: Sequence[Event | Record | None]) -> Iterator[Decision]:
        """Runs in the turn of the loop in which the events were read."""
        self._keep_pace(found)
        for (event_id, places), stored in zip(self._lines.items(), found, strict=True):
            yield self._decide(event_id, [self._items[place] for place in places], stored)

    def _decide(self, event_id: str, items: Sequence[BatchItem], stored: Event | Record | None) -> Decision:
        reuses_ids = self._tenants.policy(self._tenant).reuse_ids
        if isinstance(stored, Record):
            results = on_record(stored, items, reuses_ids=reuses_ids)
            if results:
                return results
            self._renewed.add(event_id)
        if stored is None or isinstance(stored, Record):
            return on_nothing(event_id, items)
        try:
            entry, event = self._edits.live(stored)
        except NotOwner as elsewhere:
            return [elsewhere.as_value()] * len(items)
        if entry is not None and entry.phase is Phase.SETTLING:
            return entry
        now = self._clock.now()
        is_in_flight = entry is not None and entry.in_flight
        effect = on_event(event, items, is_in_flight=is_in_flight, reuses_ids=reuses_ids)
        change: Change = Move(event, effect.after, guarded=True)
        if effect.is_cancelled:
            keep_until_at = now + self._tenants.policy(self._tenant).retention_ms
            change = Finish(event, cancelled(effect.after, now), keep_until_at, guarded=True)
        elif effect.after is event:
            return effect.results
        self._effects[event_id] = effect
        return self._edits.take(entry, event, change)

    async def _change(self, taken: dict[str, TakenEntry]) -> None:
        """Store the changes of events."""
        if not taken:
            return
        stored = await _or_error(self._edits.store_all(list(taken.values())))
        for index, (event_id, one) in enumerate(taken.items()):
            outcome = stored if isinstance(stored, EverbellError) else stored[index]
            places, effect = self._lines[event_id], self._effects[event_id]
            if isinstance(outcome, EverbellError):
                self._results.fail(places, outcome)
            elif not outcome:
                self._left[event_id] = places  # The event changed before this change was stored.
            else:
                self._results.put(places, effect.results)
                if effect.is_cancelled:
                    self._meter.count_cancelled(self._tenant)
                if isinstance(one.change, Move):
                    self._meter.count_occurrences(one.change.before.course, effect.after.course)

    async def _create(self, made: dict[str, Made]) -> None:
        """Store new events, in the order of the batch."""
        new: list[tuple[int, str | None, Draft]] = []
        for place in self._nameless:
            draft = self._items[place].draft
            assert draft is not None, "an item without a draft has an id"
            new.append((place, None, draft))
        for event_id, one in made.items():
            if one.draft is None:
                self._done(event_id, one)
            else:
                new.append((self._lines[event_id][0], event_id, one.draft))
        if not new:
            return
        new.sort(key=lambda one: one[0])
        drafts = [draft for _, _, draft in new]
        stored = await _or_error(self._intake.schedule(self._tenant, drafts, frozenset(self._renewed)))
        for index, (place, name, _) in enumerate(new):
            outcome = stored if isinstance(stored, EverbellError) else stored[index]
            places = [place] if name is None else self._lines[name]
            if isinstance(outcome, EverbellError):
                self._results.fail(places, outcome)
            elif isinstance(outcome, Taken):
                self._left[name] = places  # Another request made the event in the meantime.
            elif name is None:
                self._results.put(places, [ItemDone(outcome.id, "created")])
            else:
                self._done(name, made[name])

    def _done(self, event_id: str, made: Made) -> None:
        self._put_first(event_id, made.results)

    def _put_first(self, event_id: str, results: Sequence[ItemResult]) -> None:
        """Note the results of the first items of an id. The other items need another round."""
        places, count = self._lines[event_id], len(results)
        self._results.put(places[:count], results)
        if count < len(places):
            self._left[event_id] = places[count:]


class _ItemResults:
    """The results of a batch, by place, and the ids whose further items have to wait for a retry."""

    def __init__(self, items: Sequence[BatchItem]) -> None:
        self._items = items
        self._results: list[ItemResult | None] = [None] * len(items)
        self._held: dict[str, EverbellError] = {}

    def free(self, places: Sequence[int]) -> Sequence[int]:
        """The places whose items may be applied. The others get the error of an earlier item of the same id."""
        if not self._held:
            return places
        free: list[int] = []
        for place in places:
            item = self._items[place]
            error = None if item.id is None else self._held.get(item.id)
            if error is None or (item.mode == "cancel" and isinstance(error, BeingDelivered)):
                free.append(place)
            else:
                self._results[place] = error
        return free

    def put(self, places: Sequence[int], results: Sequence[ItemResult]) -> None:
        for place, result in zip(places, results, strict=True):
            self._results[place] = result
            if isinstance(result, EverbellError) and _may_retry(result):
                event_id = self._items[place].id
                if event_id is not None:
                    self._held[event_id] = result

    def fail(self, places: Sequence[int], error: EverbellError) -> None:
        self.put(places, [error.as_value()] * len(places))

    def all(self) -> list[ItemResult]:
        results = [result for result in self._results if result is not None]
        assert len(results) == len(self._items), "every item has a result"
        return results


def _may_retry(error: EverbellError) -> bool:
    return isinstance(error, BeingDelivered) or not isinstance(error, (Conflict, InvalidInput))


async def _or_error(answer: Awaitable[Sequence[R]]) -> Sequence[R] | EverbellError:
    try:
        return await answer
    except EverbellError as failed:
        return failed.as_value()
