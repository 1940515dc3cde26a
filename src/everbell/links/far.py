"""The engine's ports as a gateway has them: every call goes over the link."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from everbell.channels.queue import Lease
from everbell.core.allotment import Allotment
from everbell.core.plain import Plain
from everbell.core.retry import Outcome
from everbell.core.spec import Draft, event_of
from everbell.engine.forecast import Forecast
from everbell.engine.port import KeyLine, Seen
from everbell.errors import EverbellError
from everbell.links.link import GatewayEnd, PackedChange, PackedLine, PackedSeen, Scheduled, unpack_error
from everbell.stores.parcel import Parcel
from everbell.stores.port import Counts, Filter

PACK_DRAFTS = 1_000
"""Packs are cut at this size, so that the engine can begin to store one while it reads the next. It is what the engine
stores as one: what was asked for together, and is no more than this, is stored or refused together."""

Results = list[Seen | EverbellError]
Ids = list[str | Seen | EverbellError]


class _Pack:
    """Drafts of one tenant that travel together."""

    __slots__ = ("drafts", "requests", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.drafts: list[Draft] = []
        self.requests: list[tuple[int, asyncio.Future[Ids]]] = []

    def deliver(self, answered: asyncio.Future[Scheduled]) -> None:
        """Hand each request its part of the answer."""
        start = 0
        for count, future in self.requests:
            if not future.done():
                error = answered.exception()
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(_part(answered.result(), start, start + count))
            start += count


def _part(scheduled: Scheduled, start: int, end: int) -> Ids:
    return [
        _not_made(scheduled, index) if event_id is None else event_id
        for index, event_id in enumerate(scheduled.ids[start:end], start)
    ]


def _not_made(scheduled: Scheduled, index: int) -> Seen | EverbellError:
    seen = scheduled.seen.get(index)
    return seen.unpack() if seen is not None else unpack_error(scheduled.errors[index])


class FarOperations:
    """`OperationsPort` at the other end of a link."""

    def __init__(self, link: GatewayEnd) -> None:
        self._link = link
        self._packs: dict[str, _Pack] = {}

    async def schedule(self, tenant: str, drafts: Sequence[Draft]) -> Results:
        results = await self.schedule_ids(tenant, drafts)
        return [
            Seen(event_of(draft, result, tenant), "scheduled", created=True) if isinstance(result, str) else result
            for result, draft in zip(results, drafts, strict=True)
        ]

    def schedule_ids(self, tenant: str, drafts: Sequence[Draft]) -> asyncio.Future[Ids]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ids] = loop.create_future()
        if not self._packs:
            loop.call_soon(self._send_packs)
        pack = self._packs.get(tenant)
        if pack is not None and len(pack.drafts) + len(drafts) > PACK_DRAFTS:
            self._send(pack)
            pack = None
        if pack is None:
            pack = self._packs[tenant] = _Pack(tenant)
        pack.drafts.extend(drafts)
        pack.requests.append((len(drafts), future))
        if len(pack.drafts) >= PACK_DRAFTS:
            self._send(self._packs.pop(tenant))
        return future

    def schedule_plain(self, tenant: str, plain: Plain) -> Awaitable[Sequence[str | Seen | EverbellError]]:
        return self.schedule_ids(tenant, plain.drafts())

    async def allot(self, count: int) -> Allotment | None:
        allotted: Allotment | None = await self._link.call("allot", count)
        return allotted

    async def take_in(self, parcel: Parcel) -> bool:
        taken: bool = await self._link.call("take_in", parcel)
        return taken

    async def get(self, tenant: str, event_id: str) -> Seen:
        return await self._see("get", tenant, event_id)

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> tuple[list[Seen], str | None]:
        packed: tuple[list[PackedSeen], str | None] = await self._link.call("find", filter, cursor, limit)
        return [seen.unpack() for seen in packed[0]], packed[1]

    async def counts(self) -> Mapping[str, Counts]:
        counts: dict[str, Counts] = await self._link.call("counts")
        return counts

    async def replace(self, tenant: str, event_id: str, draft: Draft, version: int | None) -> Seen:
        return await self._see("replace", tenant, event_id, draft, version)

    async def change(self, tenant: str, event_id: str, fields: Mapping[str, Any], version: int | None) -> Seen:
        return await self._see("change", tenant, event_id, PackedChange.pack(fields), version)

    async def cancel(self, tenant: str, event_id: str, version: int | None = None) -> Seen:
        return await self._see("cancel", tenant, event_id, version)

    async def cancel_matching(self, filter: Filter) -> int:
        count: int = await self._link.call("cancel_matching", filter)
        return count

    async def ring(self, tenant: str, event_id: str) -> Seen:
        return await self._see("ring", tenant, event_id)

    async def redrive(self, tenant: str, event_id: str, delay_ms: int = 0) -> Seen:
        return await self._see("redrive", tenant, event_id, delay_ms)

    async def redrive_matching(self, filter: Filter, per_s: float | None = None) -> int:
        count: int = await self._link.call("redrive_matching", filter, per_s)
        return count

    async def line(self, tenant: str, key: str) -> KeyLine:
        packed: PackedLine = await self._link.call("line", tenant, key)
        return packed.unpack()

    async def forecast(self, tenant: str | None, per_ms: int, count: int) -> Forecast:
        forecast: Forecast = await self._link.call("forecast", tenant, per_ms, count)
        return forecast

    async def try_out(self, tenant: str, event_id: str) -> Outcome:
        outcome: Outcome = await self._link.call("try_out", tenant, event_id)
        return outcome

    async def _see(self, method: str, *arguments: Any) -> Seen:
        packed: PackedSeen = await self._link.call(method, *arguments)
        return packed.unpack()

    def _send_packs(self) -> None:
        packs, self._packs = self._packs, {}
        for pack in packs.values():
            self._send(pack)

    def _send(self, pack: _Pack) -> None:
        self._link.call("schedule", pack.tenant, pack.drafts).add_done_callback(pack.deliver)


class FarLeases:
    """`LeasesPort` at the other end of a link."""

    def __init__(self, link: GatewayEnd) -> None:
        self._link = link

    async def lease(self, tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None) -> list[Lease]:
        leases: list[Lease] = await self._link.call("lease", tenant, queue, limit, wait_ms, lease_ms)
        return leases

    async def acknowledge(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        return await self._tokens("acknowledge", tenant, queue, tokens)

    async def fail(self, tenant: str, queue: str, failures: Mapping[str, Outcome]) -> list[str]:
        return await self._tokens("fail", tenant, queue, failures)

    async def give_back(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        return await self._tokens("give_back", tenant, queue, tokens)

    async def extend(self, tenant: str, queue: str, tokens: Sequence[str], lease_ms: int) -> list[str]:
        return await self._tokens("extend", tenant, queue, tokens, lease_ms)

    async def _tokens(self, method: str, *arguments: Any) -> list[str]:
        lost: list[str] = await self._link.call(method, *arguments)
        return lost
