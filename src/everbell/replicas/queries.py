"""Questions about many events: search, counts and forecast, over the stored events and those of all replicas.

Each event is listed by one node: the first in its line among the members that answer. Members that do not answer are
left out, so their events are listed by the next in line. A page of a search is of one node: the stored events come
first, then the members by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.request import Ask, Handler
from everbell.engine.forecast import Forecast, Forecaster
from everbell.engine.replica_requests import CountHeld, FindHeld, ForecastHeld
from everbell.engine.requests import CountEvents, Find, GetForecast
from everbell.engine.seen import Seen
from everbell.errors import EverbellError, InvalidInput
from everbell.replicas.holder import Holder
from everbell.replicas.port import Members
from everbell.stores.port import Counts, Page

_CURSOR = "r."
# The number of copies that are counted before other tasks run on the loop.
_SLICE = 2_000
# The number of copies on this node up to which a quota counts the events of all nodes, instead of estimating.
_COUNTED_MAX = 10_000


class _Place(Struct, array_like=True):
    """Where a search goes on: at which member, among which members, and the member's own cursor."""

    member: str
    among: tuple[str, ...]
    cursor: str | None = None


_read_place = msgspec.msgpack.Decoder(_Place).decode


class Queries:
    """Asks all members, and merges the answers."""

    def __init__(self, members: Members, holder: Holder, clock: Clock, stored: Ask) -> None:
        self._clock = clock
        self._members = members
        self._holder = holder
        self._stored = stored

    def peer_handlers(self) -> tuple[Handler, ...]:
        """The questions of other nodes about the events that this node lists."""
        return FindHeld.by(self._find_held), CountHeld.by(self._count_held), ForecastHeld.by(self._forecast_held)

    async def find(self, request: Find) -> tuple[list[Seen], str | None]:
        if request.cursor is None or not request.cursor.startswith(_CURSOR):
            found, cursor = await self._stored(request)
            if cursor is not None:
                return found, cursor
            place = await self._first_place()
            if place is None or len(found) >= request.limit:
                return found, None if place is None else _text(place)
            more, cursor = await self._find_at(place, request, request.limit - len(found))
            return [*found, *more], cursor
        return await self._find_at(_place_in(request.cursor), request, request.limit)

    async def _first_place(self) -> _Place | None:
        """The beginning of a search; None if no member holds any copy."""
        counts = await self._counts()
        among = tuple(sorted(name for name, counted in counts.items() if counted is not None))
        holding = [name for name in among if counts[name]]
        return _Place(holding[0], among) if holding else None

    async def _find_at(self, place: _Place, request: Find, limit: int) -> tuple[list[Seen], str | None]:
        asked = FindHeld(request.filter, place.cursor, limit, place.among)
        try:
            found, cursor = await self._members.ask(place.member, asked)
        except InvalidInput:
            raise
        except EverbellError:
            # The member is gone: the next in line list its events, in a search that begins now.
            found, cursor = [], None
        if cursor is not None:
            return found, _text(replace(place, cursor=cursor))
        later = [name for name in place.among if name > place.member]
        return found, _text(_Place(later[0], place.among)) if later else None

    async def count(self, request: CountEvents) -> Mapping[str, Counts]:
        total = dict(await self._stored(request))
        for counted in (await self._counts()).values():
            for tenant, more in (counted or {}).items():
                total[tenant] = _sum(total.get(tenant, Counts()), more)
        return total

    async def pending(self) -> Mapping[str, Counts]:
        """About the number of events of each tenant, for quotas."""
        store, names = self._holder.store, self._members.roster.names
        if len(store.copies) <= _COUNTED_MAX:
            return await self.count(CountEvents())
        # Copies are spread evenly over the members, so this node's share tells the number.
        return {
            tenant: Counts(round(counts.pending * len(names) / min(self._usual_count(tenant), len(names))))
            for tenant, counts in (await store.counts()).items()
        }

    def _usual_count(self, tenant: str) -> int:
        return self._holder.engine.tenants.policy(tenant).replicas.count

    async def forecast(self, request: GetForecast) -> Forecast:
        stored = await self._stored(request)
        among = tuple(sorted(name for name, counted in (await self._counts()).items() if counted))
        if not among:
            return stored
        asked = ForecastHeld(request.tenant, request.per_ms, request.count, among)
        answers = await asyncio.gather(*(self._members.ask(name, asked) for name in among), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Forecast):
                stored = _together(stored, answer)
        return stored

    async def _counts(self) -> dict[str, dict[str, Counts] | None]:
        """The counts of each member; None for one that does not answer."""
        names = self._members.roster.names

        async def ask(name: str) -> dict[str, Counts] | None:
            try:
                return await self._members.ask(name, CountHeld(names))
            except EverbellError:
                return None

        counts = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
        if None not in counts.values():
            return counts
        names = tuple(name for name in names if counts[name] is not None)
        return {**counts, **dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))}

    # For other nodes

    async def _find_held(self, request: FindHeld) -> tuple[list[Seen], str | None]:
        found, cursor = await self._holder.engine.ask(Find(request.filter, request.cursor, request.limit))
        return [seen for seen in found if self._holder.lists(seen.event, request.among)], cursor

    async def _count_held(self, request: CountHeld) -> dict[str, Counts]:
        found: dict[str, list[int]] = {}
        for number, copy in enumerate(list(self._holder.store.copies.values())):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if not self._holder.lists(copy.event or copy.record, request.among):  # type: ignore[arg-type]
                continue
            tally = found.setdefault(copy.tenant, [0, 0, 0, 0, 0])
            tally[_column(copy.event, copy.record.status if copy.record is not None else "")] += 1
        return {tenant: Counts(*tally) for tenant, tally in found.items()}

    async def _forecast_held(self, request: ForecastHeld) -> Forecast:
        store, lists = self._holder.store, self._holder.lists

        async def page(partition: int, after: int, until_at: int, limit: int) -> Page:
            page = await store.page(partition, after, until_at, limit)
            last = page.events[-1].position if page.more else None
            return replace(page, events=[each for each in page.events if lists(each, request.among)], last=last)

        return await Forecaster(store, page, request.tenant, self._clock.now(), request.per_ms, request.count).run()


def _column(event: Event | None, status: str) -> int:
    if event is not None:
        return 1 if event.state == "dead" else 0
    return {"delivered": 2, "cancelled": 3, "expired": 4}[status]


def _sum(one: Counts, other: Counts) -> Counts:
    return Counts(
        one.pending + other.pending,
        one.dead + other.dead,
        one.delivered + other.delivered,
        one.cancelled + other.cancelled,
        one.expired + other.expired,
    )


def _together(one: Forecast, other: Forecast) -> Forecast:
    oldest = [at for at in (one.oldest_at, other.oldest_at) if at is not None]
    known = [at for at in (one.known_until_at, other.known_until_at) if at is not None]
    return replace(
        one,
        due=[a + b for a, b in zip(one.due, other.due, strict=True)],
        overdue=one.overdue + other.overdue,
        oldest_at=min(oldest, default=None),
        known_until_at=min(known, default=None),
    )


def _text(place: _Place) -> str:
    return _CURSOR + msgspec.msgpack.encode(place).hex()


def _place_in(cursor: str) -> _Place:
    try:
        return _read_place(bytes.fromhex(cursor.removeprefix(_CURSOR)))
    except (ValueError, msgspec.MsgspecError):
        raise InvalidInput("is not a cursor of this search", "cursor") from None
