"""Any node answers anything: what belongs to another node's partition is asked there.

Events without a key or a client's id stay here. The others go to the owner of their partition, those of one turn of the
loop together. When a partition moves in the meantime, the old owner says so without having done anything; then the
new one is asked, for as long as a hand-over may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.core.allotment import Allotment
from everbell.core.cluster import Value, slices_of
from everbell.core.event import Event
from everbell.core.ids import partition_in, place_in
from everbell.core.plain import Plain
from everbell.core.retry import Outcome
from everbell.core.spec import Draft
from everbell.engine.bulk import in_bulk
from everbell.engine.forecast import Forecast
from everbell.engine.operations import Operations
from everbell.engine.port import KeyLine, OperationsPort, Seen
from everbell.errors import EverbellError, NotOwner, OutcomeUnknown, Overloaded
from everbell.stores.parcel import Parcel
from everbell.stores.port import Counts, Filter

MOVE_S = 5.0
"""How long a request waits for a partition that is moving, or whose owner died: a lease, and a little."""
_LOOK_S = 0.05

T = TypeVar("T")
Ask = Callable[[OperationsPort, list[Draft]], Awaitable[Sequence[Any]]]
"""Schedules drafts at one node, in one form or the other."""


class RoutedOperations:
    """`OperationsPort` of the whole cluster."""

    def __init__(self, node: ClusterNode, near: Operations, peers: Peers) -> None:
        self.forwarded = 0
        """How many events were handed on to other nodes."""
        self._node = node
        self._near = near
        self._peers = peers
        self._turn = 0

    async def schedule(self, tenant: str, drafts: Sequence[Draft]) -> list[Seen | EverbellError]:
        """See the port."""
        if self._is_alone(self._node.value):
            return await self._near.schedule(tenant, drafts)
        return await self._schedule(tenant, drafts, lambda there, some: there.schedule(tenant, some))

    async def schedule_ids(self, tenant: str, drafts: Sequence[Draft]) -> list[str | Seen | EverbellError]:
        """See the port."""
        if self._is_alone(self._node.value):
            return await self._near.schedule_ids(tenant, drafts)
        return await self._schedule(tenant, drafts, lambda there, some: there.schedule_ids(tenant, some))

    async def schedule_plain(self, tenant: str, plain: Plain) -> Sequence[str | Seen | EverbellError]:
        """See the port."""
        if self._is_alone(self._node.value):
            return await self._near.schedule_plain(tenant, plain)
        return await self.schedule_ids(tenant, plain.drafts())

    async def allot(self, count: int) -> Allotment | None:
        """See the port. With others, it may be one of them who owns something."""
        return await self._near.allot(count) if self._is_alone(self._node.value) else None

    async def take_in(self, parcel: Parcel) -> bool:
        """See the port."""
        return await self._near.take_in(parcel)

    async def _schedule(self, tenant: str, drafts: Sequence[Draft], ask: Ask) -> list[Any]:
        results: dict[int, Any] = {}
        left = list(range(len(drafts)))
        until_s = _now_s() + MOVE_S
        while True:
            by_owner = self._by_owner(tenant, drafts, left)
            asked = (
                self._schedule_at(owner, [drafts[place] for place in places], ask) for owner, places in by_owner.items()
            )
            for places, answers in zip(by_owner.values(), await asyncio.gather(*asked), strict=True):
                results.update(zip(places, answers, strict=True))
            left = [place for place in left if isinstance(results[place], NotOwner)]
            if not left or _now_s() >= until_s:
                return [results[place] for place in range(len(drafts))]
            await self._node.player.changed(_LOOK_S)

    def _by_owner(self, tenant: str, drafts: Sequence[Draft], places: list[int]) -> dict[str, list[int]]:
        value = self._node.value
        slices = slices_of(value.strategy)
        anybody = self._anybody(value, slices.get(tenant))
        found: dict[str, list[int]] = {}
        for place in places:
            draft = drafts[place]
            name = draft.id if draft.key is None else draft.key
            owner = (
                anybody if name is None else _owner(value, partition_in(slices, tenant, name, len(value.partitions)))
            )
            found.setdefault(owner, []).append(place)
        return found

    async def _schedule_at(self, owner: str, drafts: list[Draft], ask: Ask) -> Sequence[Any]:
        try:
            return await ask(await self._operations(owner), drafts)
        except EverbellError as failed:
            return [failed.as_value()] * len(drafts)

    async def get(self, tenant: str, event_id: str) -> Seen:
        """See the port. Only the owner knows what is being delivered."""
        seen = await self._near.get(tenant, event_id)
        owner = _owner(self._node.value, seen.event.partition) if isinstance(seen.event, Event) else ""
        if owner in ("", self._node.me):
            return seen
        try:
            return await (await self._operations(owner)).get(tenant, event_id)
        except (Overloaded, OutcomeUnknown):
            return seen

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> tuple[list[Seen], str | None]:
        """See the port. What others are delivering is shown as scheduled or retrying."""
        return await self._near.find(filter, cursor, limit)

    async def counts(self) -> Mapping[str, Counts]:
        """See the port."""
        return await self._near.counts()

    async def replace(self, tenant: str, event_id: str, draft: Draft, version: int | None) -> Seen:
        """See the port."""
        name = event_id if draft.key is None else draft.key
        return await self._at_owner(
            tenant, event_id, lambda there: there.replace(tenant, event_id, draft, version), new_name=name
        )

    async def change(self, tenant: str, event_id: str, fields: Mapping[str, Any], version: int | None) -> Seen:
        """See the port."""
        return await self._at_owner(tenant, event_id, lambda there: there.change(tenant, event_id, fields, version))

    async def cancel(self, tenant: str, event_id: str, version: int | None = None) -> Seen:
        """See the port."""
        return await self._at_owner(tenant, event_id, lambda there: there.cancel(tenant, event_id, version))

    async def cancel_matching(self, filter: Filter) -> int:
        """See the port."""
        return await in_bulk(self._near.find, filter, lambda event: self.cancel(filter.tenant, event.id))

    async def ring(self, tenant: str, event_id: str) -> Seen:
        """See the port."""
        return await self._at_owner(tenant, event_id, lambda there: there.ring(tenant, event_id))

    async def redrive(self, tenant: str, event_id: str, delay_ms: int = 0) -> Seen:
        """See the port."""
        return await self._at_owner(tenant, event_id, lambda there: there.redrive(tenant, event_id, delay_ms))

    async def redrive_matching(self, filter: Filter, per_s: float | None = None) -> int:
        """See the port."""
        return await self._near.redrive_by(self.redrive, filter, per_s)

    async def line(self, tenant: str, key: str) -> KeyLine:
        """See the port. Only the owner knows whose turn it is."""

        async def partition() -> int:
            value = self._node.value
            return partition_in(slices_of(value.strategy), tenant, key, len(value.partitions))

        return await self._at_partition(partition, lambda there: there.line(tenant, key))

    async def forecast(self, tenant: str | None, per_ms: int, count: int) -> Forecast:
        """See the port. The store has it all."""
        return await self._near.forecast(tenant, per_ms, count)

    async def try_out(self, tenant: str, event_id: str) -> Outcome:
        """See the port. It changes nothing, so it can be done anywhere."""
        return await self._near.try_out(tenant, event_id)

    async def _at_owner(
        self,
        tenant: str,
        event_id: str,
        ask: Callable[[OperationsPort], Awaitable[T]],
        new_name: str | None = None,
    ) -> T:
        """Ask the owner of an event; `new_name` picks the partition of one that may not be there yet."""
        return await self._at_partition(lambda: self._partition_of(tenant, event_id, new_name), ask)

    async def _at_partition(
        self, find: Callable[[], Awaitable[int | None]], ask: Callable[[OperationsPort], Awaitable[T]]
    ) -> T:
        until_s = _now_s() + MOVE_S
        while True:
            partition = await find()
            owner = self._node.me if partition is None else _owner(self._node.value, partition)
            try:
                return await ask(await self._operations(owner))
            except NotOwner:
                if _now_s() >= until_s:
                    raise
            await self._node.player.changed(_LOOK_S)

    async def _partition_of(self, tenant: str, event_id: str, new_name: str | None) -> int | None:
        """None: whoever is asked can say that it ended, or that there is no such event."""
        partitions = len(self._node.value.partitions)
        place = place_in(event_id)
        if place is not None:
            return place[2] if place[2] < partitions else None
        found = await self._near.store.get(tenant, event_id)
        if isinstance(found, Event):
            return found.partition
        if found is not None or new_name is None:
            return None
        return partition_in(slices_of(self._node.value.strategy), tenant, new_name, partitions)

    async def _operations(self, owner: str) -> OperationsPort:
        if owner == self._node.me:
            return self._near
        member = self._node.value.members.get(owner)
        if member is None:
            raise NotOwner("the partition has no owner at the moment; nothing of this request was done")
        peer = await self._peers.reach(member)
        self.forwarded += 1
        return peer.operations

    def _is_alone(self, value: Value) -> bool:
        return len(value.members) == 1 and self._node.me in value.members

    def _anybody(self, value: Value, slice: tuple[int, int] | None) -> str:
        """Who takes an event that may go anywhere, or anywhere in a slice: this node, unless it owns nothing there."""
        me = self._node.me
        parts = value.partitions if slice is None else value.partitions[slice[0] : slice[0] + slice[1]]
        if any(part.owner == me and not part.to for part in parts):
            return me
        owners = sorted({part.owner for part in parts if part.owner and not part.to})
        if not owners:
            return ""
        self._turn += 1
        return owners[self._turn % len(owners)]


def _owner(value: Value, partition: int) -> str:
    return value.partitions[partition].owner


def _now_s() -> float:
    return asyncio.get_running_loop().time()
