"""Pauses over HTTP: see what of a tenant is paused, pause something, let it go on.

Pausing and resuming are for whoever has `admin` in the tenant: they need no operator to stop what they send.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.clock import Clock
from everbell.core.pause import Pause, PauseSpec, What, pause_of, thing_of
from everbell.links.port import PausesPort
from everbell.server.bodies import Body, read_query
from everbell.server.message import Request, Response
from everbell.server.moments import Instant, instant
from everbell.server.views import json_response


class ResumeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to go on."""

    what: Annotated[What, Meta(description="the whole tenant, or one of its keys, targets or queues")]
    name: Annotated[str, Meta(description="as it is in the list of what is paused")] | None = None


class PausedThing(Struct, frozen=True, omit_defaults=True):
    """Something that is paused, since when, by whom and why."""

    what: What
    since: Instant
    by: Annotated[str, Meta(description="the id of an access key, or nobody where none was needed")]
    name: str | None = None
    note: str | None = None
    until: Instant | None = None
    unheard: Annotated[
        tuple[str, ...], Meta(description="of a new pause, the nodes that could not be asked whether they know of it")
    ] = ()


class PausesView(Struct, frozen=True):
    """All that is paused in a tenant, the oldest first."""

    pauses: list[PausedThing]


class PausesApi:
    """The handlers of `/v1/tenants/{tenant}/pauses`."""

    def __init__(self, pauses: PausesPort, clock: Clock) -> None:
        self._pauses = pauses
        self._clock = clock
        self._specs = Body(PauseSpec)

    async def list(self, request: Request, tenant: str) -> Response:
        """What is paused."""
        return json_response(PausesView(await paused_in(tenant, self._pauses)))

    async def pause(self, request: Request, tenant: str) -> Response:
        """Pause something, or give what is paused another note or end."""
        pause = pause_of(tenant, self._specs.read(request), request.who, self._clock.now())
        request.subject = f"{pause.what} {pause.name}".rstrip()
        put = await self._pauses.put(pause)
        return json_response(thing_view(put.pause, put.unheard), 201 if put.is_new else 200)

    async def resume(self, request: Request, tenant: str) -> Response:
        """Let something go on."""
        query = read_query(request, ResumeQuery)
        what, name = thing_of(query.what, query.name)
        request.subject = f"{what} {name}".rstrip()
        return json_response(thing_view(await self._pauses.drop(tenant, what, name)))


async def paused_in(tenant: str, pauses: PausesPort) -> list[PausedThing]:
    """What is paused in a tenant."""
    return [thing_view(pause) for pause in await pauses.pauses() if pause.tenant == tenant]


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
