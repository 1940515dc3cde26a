"""Many events in one request: each goes to the store or to its replicas, as it asks for.

Items of one id take effect in order. Items of different ids are done at the same time, some of them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from everbell.core.batch_item import BatchItem, ItemDone, ItemResult
from everbell.core.ids import is_made
from everbell.core.replicas.ids import is_replica_id
from everbell.core.request import Ask, Handler
from everbell.core.spec import Draft
from everbell.core.tenant import Tenants
from everbell.engine.requests import ApplyItems, Cancel, Replace, Schedule
from everbell.engine.seen import DraftResult
from everbell.errors import EverbellError, InvalidInput, NotFound
from everbell.replicas.coordinator import Coordinator

# The number of ids whose items are done at the same time.
_TOGETHER = 64


class HeldBatches:
    """Answers requests with many events."""

    def __init__(self, coordinator: Coordinator, tenants: Tenants, stored: Ask, ask: Ask, *, has_store: bool) -> None:
        """`ask` answers about one event, wherever it is; `stored` about stored events."""
        self._coordinator = coordinator
        self._tenants = tenants
        self._stored = stored
        self._ask = ask
        self._has_store = has_store

    def handlers(self) -> tuple[Handler, ...]:
        """The requests with many events."""
        return Schedule.by(self._schedule), ApplyItems.by(self._apply)

    async def _schedule(self, request: Schedule) -> Sequence[DraftResult]:
        body = request.body
        drafts = body if isinstance(body, (list, tuple)) else ()
        held = [index for index, draft in enumerate(drafts) if draft.replicas is not None]
        if not self._has_store and (len(held) < len(drafts) or not drafts):
            raise no_store()
        if not held:
            return await self._stored(request)
        results: dict[int, DraftResult] = {}
        left = [index for index in range(len(drafts)) if drafts[index].replicas is None]
        asked = [self._coordinator.schedule(request.tenant, [drafts[index] for index in held])]
        if left:
            asked.append(self._schedule_stored(request.tenant, [drafts[index] for index in left]))
        for places, answers in zip((held, left), await asyncio.gather(*asked), strict=False):
            results.update(zip(places, answers, strict=True))
        return [results[index] for index in range(len(drafts))]

    async def _schedule_stored(self, tenant: str, drafts: list[Draft]) -> list[DraftResult]:
        try:
            return list(await self._stored(Schedule(tenant, drafts)))
        except EverbellError as failed:
            return [failed.as_value()] * len(drafts)

    async def _apply(self, request: ApplyItems) -> Sequence[ItemResult]:
        tenant, items = request.tenant, request.items
        held = [index for index, item in enumerate(items) if self._is_held(tenant, item)]
        left = [index for index in range(len(items)) if index not in set(held)]
        if not self._has_store and any(items[index].draft is not None for index in left):
            raise no_store()
        results: dict[int, ItemResult] = {}
        if left and self._has_store:
            stored = await self._stored(ApplyItems(tenant, [items[index] for index in left]))
            results.update(zip(left, stored, strict=True))
            held += [index for index in left if _may_be_held(items[index], results[index])]
        else:
            held += left
        results.update(await self._apply_held(tenant, {index: items[index] for index in sorted(held)}))
        return [results[index] for index in range(len(items))]

    def _is_held(self, tenant: str, item: BatchItem) -> bool:
        """Whether an item is about an event of replicas. One that only names an id may turn out to be."""
        if item.draft is not None:
            return item.draft.replicas is not None
        return is_replica_id(item.id or "") or self._tenants.policy(tenant).durability == "replicas"

    async def _apply_held(self, tenant: str, items: dict[int, BatchItem]) -> dict[int, ItemResult]:
        """New events go to their replicas together; the items of an id that several name, one after the other."""
        results: dict[int, ItemResult] = {}
        by_id: dict[str, list[int]] = {}
        for index, item in items.items():
            by_id.setdefault(f"\n{index}" if item.id is None else item.id, []).append(index)
        fresh: dict[int, Draft] = {}
        for name, places in list(by_id.items()):
            item = items[places[0]]
            if len(places) == 1 and item.mode == "create" and item.draft is not None:
                fresh[places[0]] = item.draft
                del by_id[name]
        gate = asyncio.Semaphore(_TOGETHER)

        async def one_by_one(places: list[int]) -> None:
            async with gate:
                for place in places:
                    try:
                        results[place] = await self._apply_one(tenant, items[place])
                    except EverbellError as failed:
                        results[place] = failed.as_value()

        async def together() -> None:
            made = await self._coordinator.schedule(tenant, list(fresh.values()))
            results.update(zip(fresh, map(_as_item, made), strict=True))

        await asyncio.gather(together(), *map(one_by_one, by_id.values()))
        return results

    async def _apply_one(self, tenant: str, item: BatchItem) -> ItemResult:
        assert item.id is not None, "new events without an id are scheduled together"
        if item.draft is None:
            try:
                await self._ask(Cancel(tenant, item.id))
            except NotFound:
                return ItemDone(item.id, "unknown")
            return ItemDone(item.id, "cancelled")
        if item.mode == "put":
            seen = await self._coordinator.replace(Replace(tenant, item.id, item.draft, None))
            return ItemDone(item.id, "created" if seen.created else "replaced")
        (made,) = await self._coordinator.schedule(tenant, [item.draft])
        return _as_item(made)


def _may_be_held(item: BatchItem, result: ItemResult) -> bool:
    """Whether an event that is not in the store may be one of replicas."""
    is_unknown = isinstance(result, ItemDone) and result.status == "unknown"
    return is_unknown and item.id is not None and not is_made(item.id)


def _as_item(made: DraftResult) -> ItemResult:
    if isinstance(made, EverbellError):
        return made
    return ItemDone(made if isinstance(made, str) else made.event.id, "created")


def no_store() -> InvalidInput:
    """The error for a new event that needs a store where there is none."""
    return InvalidInput("this server keeps no store: events need durability replicas", "durability")
