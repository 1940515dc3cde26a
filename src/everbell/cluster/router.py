"""Any node answers any request: it asks the owner of the partition of the event or key.

Events without a key or a client's id stay on this node, unless their tenant spreads them over all owners. The others go
to the owners of their partitions. When a partition moves meanwhile, the old owner refuses the request with `NotOwner`
and does nothing; then the router asks the new owner. It retries for as long as a hand-over may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import TypeVar

from everbell.clock import Clock
from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.cluster.router_leases import LeaseRouter
from everbell.cluster.spreading import Spreading
from everbell.core.allotment import Allotment
from everbell.core.batch_item import BatchItem, ItemResult
from everbell.core.cluster import Member, Value, slices_of
from everbell.core.event import Event
from everbell.core.ids import partition_in, place_in
from everbell.core.request import Ask, Handlers, Request
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.engine.bulk import cancel_matching, redrive_matching
from everbell.engine.engine import Engine
from everbell.engine.request_routes import Anywhere, ByEventId, ByKey, EngineRequest, EveryNode
from everbell.engine.requests import Allot, ApplyItems, CancelMatching, Get, RedriveMatching, Schedule
from everbell.engine.seen import DraftResult, Explained, Seen
from everbell.engine.view_requests import Explain
from everbell.errors import EverbellError, NotOwner, OutcomeUnknown, Overloaded
from everbell.stores.port import PreparedRows

MOVE_S = 5.0
"""How long to retry a request while its partition has no owner: slightly more than one lease."""
_LOOK_S = 0.05
# How long a request to all nodes waits for each of them.
_EACH_S = 2.0

A = TypeVar("A")


class Router:
    """Answers for the whole cluster."""

    def __init__(
        self, node: ClusterNode, engine: Engine, peers: Peers, clock: Clock, about_node: Ask | None = None
    ) -> None:
        """`about_node` answers the requests to every node; by default the engine does."""
        self.forwarded = 0
        """The number of requests about events that other nodes were asked."""
        self._node = node
        self._engine = engine
        self._about_node = about_node or engine.ask
        self._peers = peers
        self._turn = 0
        self._spreading = Spreading()
        self._older: set[str] = set()  # The nodes that cannot explain events.
        self._handlers = Handlers(
            Schedule.by(self._schedule),
            Allot.by(self._allot),
            ApplyItems.by(self._apply_items),
            Get.by(self._get),
            Explain.by(self._explain),
            CancelMatching.by(partial(cancel_matching, self.ask)),
            RedriveMatching.by(partial(redrive_matching, self.ask, clock)),
            Anywhere.by(engine.ask),
            ByEventId.by(self._by_event_id),
            ByKey.by(self._by_key),
            EveryNode.by(self._everywhere),
            *LeaseRouter(node, engine.ask, peers).handlers(),
            complete=EngineRequest,
        )

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        """Answer an `EngineRequest`, here or at the owner."""
        return self._handlers.ask(request)

    async def _schedule(self, request: Schedule) -> Sequence[DraftResult]:
        body = request.body
        if isinstance(body, PreparedRows) or self._is_alone(self._node.value):
            return await self._engine.ask(request)
        return await self._schedule_drafts(request.tenant, body.drafts() if isinstance(body, SimpleBatch) else body)

    async def _allot(self, request: Allot) -> Allotment | None:
        # Other nodes of the cluster may own partitions of a batch.
        return await self._engine.ask(request) if self._is_alone(self._node.value) else None

    async def _schedule_drafts(self, tenant: str, drafts: Sequence[Draft]) -> list[DraftResult]:
        async def names(places: list[int]) -> list[str | int | None]:
            return [_name_of(drafts[place]) for place in places]

        def request(places: list[int]) -> Schedule:
            return Schedule(tenant, [drafts[place] for place in places])

        return await self._ask_owners(tenant, len(drafts), names, request)

    async def _apply_items(self, request: ApplyItems) -> Sequence[ItemResult]:
        items = request.items
        if self._is_alone(self._node.value):
            return await self._engine.ask(request)

        async def names(places: list[int]) -> list[str | int | None]:
            return await self._names_of(request.tenant, [items[place] for place in places])

        def some(places: list[int]) -> ApplyItems:
            return ApplyItems(request.tenant, [items[place] for place in places])

        return await self._ask_owners(request.tenant, len(items), names, some)

    async def _names_of(self, tenant: str, items: Sequence[BatchItem]) -> list[str | int | None]:
        """The partition of each item's event, or the name that will place it. All items of an id get the same."""
        ids = list(dict.fromkeys(item.id for item in items if item.id is not None))
        stored = zip(ids, await self._engine.store.get_many(tenant, ids), strict=True)
        names: dict[str, str | int | None] = {
            event_id: event.partition for event_id, event in stored if isinstance(event, Event)
        }
        for item in items:
            if item.id is not None and item.draft is not None:
                names.setdefault(item.id, _name_of(item.draft))
        return [_name_of(item.draft) if item.id is None else names.get(item.id) for item in items]

    async def _ask_owners(
        self,
        tenant: str,
        count: int,
        names: Callable[[list[int]], Awaitable[list[str | int | None]]],
        request: Callable[[list[int]], Request[Sequence[A]]],
    ) -> list[A | EverbellError]:
        """Ask each owner about its part of a batch, and ask again where a partition has moved. `names` has the key, id
        or partition that decides the owner of each place; `request` makes the request for some places.
        """
        results: dict[int, A | EverbellError] = {}
        left = list(range(count))
        until_s = _now_s() + MOVE_S
        spreads = self._engine.tenants.policy(tenant).placement == "spread"
        while True:
            by_owner = self._by_owner(tenant, left, await names(left), spreads=spreads)
            asked = (self._ask_owner(owner, request(places), len(places)) for owner, places in by_owner.items())
            for places, answers in zip(by_owner.values(), await asyncio.gather(*asked), strict=True):
                results.update(zip(places, answers, strict=True))
            left = [place for place in left if isinstance(results[place], NotOwner)]
            if not left or _now_s() >= until_s:
                return [results[place] for place in range(count)]
            # Events without a name that another node could not take stay here, and need not wait for that node.
            spreads = False
            await self._node.player.changed(_LOOK_S)

    def _by_owner(
        self, tenant: str, places: list[int], names: list[str | int | None], *, spreads: bool
    ) -> dict[str, list[int]]:
        value = self._node.value
        slices = slices_of(value.strategy)
        unnamed = self._owners_of_unnamed(value, slices.get(tenant), spreads=spreads)
        found: dict[str, list[int]] = {}
        for place, name in zip(places, names, strict=True):
            partition = partition_in(slices, tenant, name, len(value.partitions)) if isinstance(name, str) else name
            found.setdefault(next(unnamed) if partition is None else _owner(value, partition), []).append(place)
        return found

    async def _ask_owner(self, owner: str, request: Request[Sequence[A]], count: int) -> Sequence[A | EverbellError]:
        try:
            return await (await self._reach(owner))(request)
        except EverbellError as failed:
            return [failed.as_value()] * count

    async def _get(self, request: Get) -> Seen:
        """Only the owner knows whether the event is in flight. If it does not answer, the stored state is returned."""
        seen = await self._engine.ask(request)
        owner = "" if seen.live is None else _owner(self._node.value, seen.live.partition)
        if owner in ("", self._node.me):
            return seen
        try:
            return await (await self._reach(owner))(request)
        except (Overloaded, OutcomeUnknown):
            return seen

    async def _explain(self, request: Explain) -> Explained:
        """If the owner gives no answer, or its version cannot explain events, that is the explanation."""
        explained = await self._engine.ask(request)
        live = explained.seen.live
        owner = "" if live is None else _owner(self._node.value, live.partition)
        if owner in ("", self._node.me):
            return explained
        if owner not in self._older:
            try:
                return await (await self._reach(owner))(request)
            except (Overloaded, OutcomeUnknown):
                pass
            except EverbellError as failed:
                # A node of an older version reports an unexpected failure, which has no class of its own. It also logs
                # an error, so it is asked once.
                if type(failed) is not EverbellError:
                    raise
                self._older.add(owner)
        return Explained(await self._get(Get(request.tenant, request.id)), explained.why)

    async def _by_event_id(self, request: ByEventId[A]) -> A:
        return await self._at_partition(lambda: self._partition_of(request), request)

    async def _by_key(self, request: ByKey[A]) -> A:
        async def partition() -> int:
            value = self._node.value
            return partition_in(slices_of(value.strategy), request.tenant, request.key, len(value.partitions))

        return await self._at_partition(partition, request)

    async def _everywhere(self, request: EveryNode[A]) -> A:
        others = [member for name, member in self._node.value.members.items() if name != self._node.me]
        answers = await asyncio.gather(self._about_node(request), *(self._ask_one(each, request) for each in others))
        unheard = [member.name for member, answer in zip(others, answers[1:], strict=True) if answer is None]
        return request.merged([answer for answer in answers if answer is not None], sorted(unheard))

    async def _ask_one(self, member: Member, request: Request[A]) -> A | None:
        """The answer of another node. None: it gave none in time, or its version does not know the request."""
        try:
            async with asyncio.timeout(_EACH_S):
                return await (await self._peers.reach(member)).ask(request)
        except (EverbellError, TimeoutError):
            return None

    async def _at_partition(self, find: Callable[[], Awaitable[int | None]], request: Request[A]) -> A:
        until_s = _now_s() + MOVE_S
        while True:
            partition = await find()
            owner = self._node.me if partition is None else _owner(self._node.value, partition)
            try:
                return await (await self._reach(owner))(request)
            except NotOwner:
                if _now_s() >= until_s:
                    raise
            await self._node.player.changed(_LOOK_S)

    async def _partition_of(self, request: ByEventId[A]) -> int | None:
        """None if the event has ended or does not exist: then any node can answer."""
        partitions = len(self._node.value.partitions)
        place = place_in(request.id)
        if place is not None:
            return place[2] if place[2] < partitions else None
        found = await self._engine.store.get(request.tenant, request.id)
        if isinstance(found, Event):
            return found.partition
        if found is not None or request.new_name is None:
            return None
        return partition_in(slices_of(self._node.value.strategy), request.tenant, request.new_name, partitions)

    async def _reach(self, owner: str) -> Ask:
        if owner == self._node.me:
            return self._engine.ask
        member = self._node.value.members.get(owner)
        if member is None:
            raise NotOwner("the partition has no owner at the moment; nothing of this request was done")
        peer = await self._peers.reach(member)
        self.forwarded += 1
        return peer.ask

    def _is_alone(self, value: Value) -> bool:
        return len(value.members) == 1 and self._node.me in value.members

    def _owners_of_unnamed(self, value: Value, slice: tuple[int, int] | None, *, spreads: bool) -> Iterator[str]:
        """The nodes for events without a name: this one, unless the tenant spreads its events or this node owns no
        partition (of the slice).
        """
        me = self._node.me
        parts = value.partitions if slice is None else value.partitions[slice[0] : slice[0] + slice[1]]
        if spreads:
            return self._spreading.owners(parts)
        if any(part.owner == me and not part.to for part in parts):
            return repeat(me)
        owners = sorted({part.owner for part in parts if part.owner and not part.to})
        self._turn += 1
        return repeat(owners[self._turn % len(owners)] if owners else "")


def _name_of(draft: Draft | None) -> str | None:
    """The key or id that places a new event."""
    return None if draft is None else draft.id if draft.key is None else draft.key


def _owner(value: Value, partition: int) -> str:
    return value.partitions[partition].owner


def _now_s() -> float:
    return asyncio.get_running_loop().time()
