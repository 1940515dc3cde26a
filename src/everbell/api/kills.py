"""Kills over HTTP: list them, kill a tag, a key, a target or a tenant, and lift a kill.

The scope `admin` in the tenant is enough: a tenant's own people can end a job without an operator.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.timestamps import Instant, instant
from everbell.api.views import json_response
from everbell.clock import Clock
from everbell.core.kill import Kill, KillCount, KillKind, KillSpec, kill_of, killed_thing
from everbell.core.request import Ask
from everbell.edge.bodies import Body, read_query
from everbell.engine.kill_requests import CountKilled, DropKill, ListKills, PutKill
from everbell.http.message import HttpRequest, HttpResponse

KILLS = TENANT + "/kills"


class LiftQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which kill to lift."""

    what: Annotated[KillKind, Meta(description="the whole tenant, or its events with a tag, a key or a target")]
    name: Annotated[str, Meta(description="as in the list of kills")] | None = None


class KilledThing(Struct, frozen=True, omit_defaults=True):
    """A kill: its object, its beginning, the access key that made it, the reason, and the events that it ended."""

    what: KillKind
    since: Instant
    by: Annotated[str, Meta(description="the id of an access key, or nobody where none was needed")]
    name: str | None = None
    note: str | None = None
    ended: Annotated[int, Meta(description="events that it has ended, since the nodes started")] = 0
    searching: Annotated[bool, Meta(description="whether a node still searches for events to end")] = False
    unheard: Annotated[tuple[str, ...], Meta(description="of a new kill: the nodes that did not confirm it")] = ()


class KillsView(Struct, frozen=True):
    """All kills of a tenant, the oldest first."""

    kills: list[KilledThing]


class KillsApi(Resource, tag="kills"):
    """Kills of a tag, a key, a target or a tenant."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._specs = Body(KillSpec)

    @Route(
        "GET",
        KILLS,
        "List the kills of a tenant",
        (ResponseKind(200, "each with its beginning, access key, reason and count", KillsView),),
        access="read",
    )
    async def list_kills(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """The oldest comes first."""
        kills = [kill for kill in await self._ask(ListKills()) if kill.tenant == tenant]
        counts = await self._ask(CountKilled(tenant)) if kills else {}
        return json_response(KillsView([_view(kill, counts.get(kill.place, KillCount())) for kill in kills]))

    @Route(
        "POST",
        KILLS,
        "End everything with a tag, a key or a target, or everything of a tenant",
        (
            ResponseKind(201, "no attempt starts any more; all events end, also those that arrive", KilledThing),
            ResponseKind(200, "it was killed before, and has this note now", KilledThing),
        ),
        access="admin",
        problems=(409,),
        body=KillSpec,
        example={"what": "tag", "name": "nightly", "note": "wrong prices"},
    )
    async def kill(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """It is in force until it is lifted."""
        kill = kill_of(tenant, self._specs.read(request), request.who, self._clock.now())
        request.subject = f"{kill.what} {kill.name}".rstrip()
        put = await self._ask(PutKill(kill))
        return json_response(_view(put.kill, KillCount(), put.unheard), 201 if put.is_new else 200)

    @Route(
        "DELETE",
        KILLS,
        "Lift a kill",
        (ResponseKind(200, "the kill that was lifted, with its count", KilledThing),),
        access="admin",
        problems=(404,),
        query=LiftQuery,
    )
    async def lift(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Ended events stay ended; new events are delivered again."""
        query = read_query(request, LiftQuery)
        what, name = killed_thing(query.what, query.name)
        request.subject = f"{what} {name}".rstrip()
        counts = await self._ask(CountKilled(tenant))
        kill = await self._ask(DropKill(tenant, what, name))
        return json_response(_view(kill, KillCount(counts.get(kill.place, KillCount()).ended)))


def _view(kill: Kill, count: KillCount, unheard: tuple[str, ...] = ()) -> KilledThing:
    return KilledThing(
        kill.what,
        instant(kill.since_at),
        kill.by,
        kill.name or None,
        kill.note,
        count.ended,
        count.is_searching,
        unheard,
    )
