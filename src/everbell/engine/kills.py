"""Kills on a node: no attempt of a killed event starts, and all of them end.

Three places end killed events. The dispatcher ends an event instead of starting it, so nothing is sent after a kill is
known. A request that stored a killed event ends it before the request is answered, so an event that was acknowledged
before the kill was lifted has ended. And a search ends the events that were there before: each node searches for the
events of its own partitions when it hears of a kill and when it gets partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from everbell.clock import Clock
from everbell.core.batch_item import ItemDone
from everbell.core.event import Event, Status
from everbell.core.kill import Kill, KillCount, Tagged, killed
from everbell.core.request import Ask, Handler
from everbell.core.simple_batch import SimpleBatch
from everbell.core.tenant import Tenants
from everbell.engine.edits import Edits
from everbell.engine.kill_requests import CountKilled
from everbell.engine.kills_in_force import KillsInForce
from everbell.engine.meter import Meter
from everbell.engine.requests import Amend, ApplyItems, Find, Redrive, Replace, Ring, Schedule
from everbell.engine.seen import Seen
from everbell.engine.supervisor import Supervisor
from everbell.errors import Conflict, EverbellError, NotFound, NotOwner
from everbell.stores.port import Change, Filter, Finish, PreparedRows

_log = logging.getLogger("everbell.engine")

_PAGE_EVENTS = 500
_PAUSE_S = 1.0
_STORING = frozenset({Schedule, ApplyItems, Replace, Amend, Ring, Redrive})
_ONE_PLACE = ("queue:", "handler:", "kafka://")


class Kills:
    """Ends the killed events of a node."""

    def __init__(
        self,
        in_force: KillsInForce,
        clock: Clock,
        tenants: Tenants,
        epochs: Mapping[int, int],
        edits: Edits,
        meter: Meter,
        ask: Ask,
        supervisor: Supervisor,
        *,
        searches: bool,
    ) -> None:
        """`searches` is False for copies of events that other nodes hold as well: each of them ends when it is due."""
        self._in_force = in_force
        self._clock = clock
        self._tenants = tenants
        self._epochs = epochs
        self._edits = edits
        self._meter = meter
        self._ask = ask
        self._supervisor = supervisor
        self._searches = searches
        self._unsearched: dict[str, Kill] = {}
        self._searching: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> Mapping[str, int]:
        """How many events each kill in force has ended on this node, by its place."""
        return self._in_force.ended

    def handlers(self) -> tuple[Handler, ...]:
        """The request for the counts."""
        return (CountKilled.by(self._count),)

    def watching(self, handlers: Iterable[Handler]) -> tuple[Handler, ...]:
        """The same handlers. A request that stored a killed event ends it before it is answered."""
        return tuple(
            Handler(each.kind, self._watching(each.handle)) if each.kind in _STORING else each for each in handlers
        )

    def _watching(self, handle: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def watched(request: Any) -> Any:
            is_simple = isinstance(request, Schedule) and isinstance(request.body, SimpleBatch)
            if is_simple and self._in_force.concern(request.tenant):
                request = Schedule(request.tenant, request.body.drafts())
            answer = await handle(request)
            if self._in_force.concern(request.tenant):
                await self._end_stored(request, answer)
            return answer

        return watched

    async def _end_stored(self, request: Any, answer: Any) -> None:
        stored: list[tuple[str, Tagged]] = []
        if isinstance(answer, Seen):
            stored = [] if answer.live is None else [(answer.live.id, answer.live)]
        elif isinstance(request, ApplyItems):
            done = zip(request.items, answer, strict=True)
            stored = [(one.id, item.draft) for item, one in done if item.draft and isinstance(one, ItemDone)]
        elif isinstance(request.body, (SimpleBatch, PreparedRows)):
            self.search_again(request.tenant)  # The kill came while they were being stored.
        else:
            stored = [(one, draft) for draft, one in zip(request.body, answer, strict=True) if isinstance(one, str)]
        await self.end(request.tenant, stored)

    def follow(self, kills: Iterable[Kill]) -> None:
        """Replace all kills. After this returns, no attempt of a killed event starts."""
        with self._supervisor.critical():
            before = {kill.place for kill in self._in_force.on}
            self._in_force.set(kills)
            self._search_for(kill for kill in self._in_force.on if kill.place not in before)

    def search_again(self, tenant: str | None = None) -> None:
        """Search for all killed events, of one tenant or of all: some may have come without being looked at."""
        self._search_for(kill for kill in self._in_force.on if tenant is None or kill.tenant == tenant)

    def stop(self) -> None:
        """Search no more."""
        self._searches = False
        if self._task is not None:
            self._task.cancel()

    async def end(self, tenant: str, events: Iterable[tuple[str, Tagged]]) -> None:
        """End those of these stored events that are killed, by their ids. Raises nothing: a search ends the rest."""
        ids = [event_id for event_id, event in events if self._in_force.kill_of(tenant, event) is not None]
        for start in range(0, len(ids), _PAGE_EVENTS):
            await asyncio.gather(*(self._end_one(tenant, event_id) for event_id in ids[start : start + _PAGE_EVENTS]))

    async def _end_one(self, tenant: str, event_id: str) -> None:
        ended_by: Kill | None = None
        keep_ms = self._tenants.policy(tenant).retention_ms

        def edit(event: Event) -> Change:
            nonlocal ended_by
            ended_by = self._in_force.kill_of(tenant, event)
            if ended_by is None:
                raise Conflict("the kill was lifted")
            now = self._clock.now()
            return Finish(event, killed(event, ended_by, now), now + keep_ms, guarded=True)

        try:
            await self._edits.make(tenant, event_id, edit, None, cancels=True)
        except (NotFound, Conflict, NotOwner):
            return  # It has ended, or another node owns it by now, and searches for itself.
        except EverbellError as refused:
            _log.warning("event %s of tenant %s is killed, but could not be ended yet: %s", event_id, tenant, refused)
            self.search_again(tenant)
            return
        assert ended_by is not None, "the edit found the kill"
        self._in_force.ended[ended_by.place] += 1
        self._meter.count_cancelled(tenant)

    def _search_for(self, kills: Iterable[Kill]) -> None:
        if not self._searches:
            return
        self._unsearched.update((kill.place, kill) for kill in kills)
        if self._unsearched and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._search_all())

    async def _search_all(self) -> None:
        try:
            while self._unsearched:
                place = self._searching = next(iter(self._unsearched))
                kill = self._unsearched.pop(place)
                try:
                    await self._search(kill)
                except EverbellError as refused:
                    _log.warning("the search for events of the killed %s goes on later: %s", kill.label, refused)
                    self._unsearched[place] = kill
                    await asyncio.sleep(_PAUSE_S)
        except Exception as fault:
            self._supervisor.end(fault)
        finally:
            # In the same step as the last look: a kill that is added after this must start a new task.
            self._searching = self._task = None

    async def _search(self, kill: Kill) -> None:
        unfinished: tuple[Status | None, ...] = (None, "dead")
        for status in unfinished:
            cursor: str | None = None
            while kill in self._in_force.on:
                found, cursor = await self._ask(Find(_filter(kill, status), cursor, _PAGE_EVENTS))
                events = [seen.live for seen in found if seen.live is not None]
                await self.end(kill.tenant, [(event.id, event) for event in events if event.partition in self._epochs])
                if cursor is None:
                    break

    async def _count(self, request: CountKilled) -> dict[str, KillCount]:
        return {
            kill.place: KillCount(
                self._in_force.ended[kill.place], kill.place in self._unsearched or kill.place == self._searching
            )
            for kill in self._in_force.on
            if kill.tenant == request.tenant
        }


def _filter(kill: Kill, status: Status | None) -> Filter:
    """A search that finds at least the events of a kill."""
    match kill.what:
        case "tag":
            return Filter(kill.tenant, status, tag=kill.name)
        case "key":
            return Filter(kill.tenant, status, key=kill.name)
        case "target" if kill.name.startswith(_ONE_PLACE) or kill.name.count("/") > 2:
            return Filter(kill.tenant, status, to=kill.name)
    # The URLs of a host can be written in several ways: with and without a port.
    return Filter(kill.tenant, status)
