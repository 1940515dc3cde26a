"""Pauses over HTTP: list them, pause something, resume it.

The scope `admin` in the tenant is enough: a tenant's own people can stop deliveries without an operator.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.timestamps import Instant, instant
from everbell.api.views import json_response
from everbell.clock import Clock
from everbell.core.pause import Pause, PauseSpec, What, pause_of, thing_of
from everbell.core.request import Ask
from everbell.edge.bodies import Body, read_query
from everbell.engine.requests import DropPause, ListPauses, PutPause
from everbell.http.message import HttpRequest, HttpResponse

PAUSES = TENANT + "/pauses"


class ResumeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which pause to end."""

    what: Annotated[What, Meta(description="the whole tenant, or one of its keys, targets or queues")]
    name: Annotated[str, Meta(description="as in the list of pauses")] | None = None


class PausedThing(Struct, frozen=True, omit_defaults=True):
    """A pause: its object, its beginning, the access key that made it, and the reason."""

    what: What
    since: Instant
    by: Annotated[str, Meta(description="the id of an access key, or nobody where none was needed")]
    name: str | None = None
    note: str | None = None
    until: Instant | None = None
    unheard: Annotated[tuple[str, ...], Meta(description="of a new pause: the nodes that did not confirm it")] = ()


class PausesView(Struct, frozen=True):
    """All pauses of a tenant, the oldest first."""

    pauses: list[PausedThing]


class PausesApi(Resource, tag="pauses"):
    """Pauses of a tenant, a key, a target or a queue."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._specs = Body(PauseSpec)

    @Route(
        "GET",
        PAUSES,
        "List the pauses of a tenant",
        (ResponseKind(200, "each with its beginning, access key, reason and end", PausesView),),
        access="read",
        shared=True,
    )
    async def list_pauses(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """The oldest comes first."""
        return json_response(PausesView(await paused_in(tenant, self._ask)))

    @Route(
        "POST",
        PAUSES,
        "Pause a tenant, a key, a target or a queue",
        (
            ResponseKind(201, "no attempt starts any more; attempts in flight may end", PausedThing),
            ResponseKind(200, "it was paused before, and has this note and end now", PausedThing),
        ),
        access="admin",
        problems=(409,),
        body=PauseSpec,
        example={"what": "queue", "name": "mail", "note": "provider is down", "for": "2h"},
    )
    async def pause(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Events are accepted meanwhile, and wait."""
        pause = pause_of(tenant, self._specs.read(request), request.who, self._clock.now())
        request.subject = f"{pause.what} {pause.name}".rstrip()
        put = await self._ask(PutPause(pause))
        return json_response(thing_view(put.pause, put.unheard), 201 if put.is_new else 200)

    @Route(
        "DELETE",
        PAUSES,
        "Resume a tenant, a key, a target or a queue",
        (ResponseKind(200, "the pause that has ended", PausedThing),),
        access="admin",
        problems=(404,),
        query=ResumeQuery,
    )
    async def resume(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Overdue events are delivered, the oldest first."""
        query = read_query(request, ResumeQuery)
        what, name = thing_of(query.what, query.name)
        request.subject = f"{what} {name}".rstrip()
        return json_response(thing_view(await self._ask(DropPause(tenant, what, name))))


async def paused_in(tenant: str, ask: Ask) -> list[PausedThing]:
    return [thing_view(pause) for pause in await ask(ListPauses()) if pause.tenant == tenant]


def thing_view(pause: Pause, unheard: tuple[str, ...] = ()) -> PausedThing:
    """A pause as it is answered."""
    return PausedThing(
        pause.what,
        instant(pause.since_at),
        pause.by,
        pause.name or None,
        pause.note,
        None if pause.until_at is None else instant(pause.until_at),
        unheard,
    )
