"""One ordering key over HTTP: its head, how many events wait behind it, and how to drop a head that is stuck."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.views import EventView, event_response, event_view, json_response
from everbell.core.request import Ask
from everbell.core.spec import check_name
from everbell.edge.bodies import version_of
from everbell.engine.requests import Cancel, GetLine
from everbell.errors import NotFound
from everbell.http.message import HttpRequest, HttpResponse

KEY = TENANT + "/keys/{ordering_key}"


class LineView(Struct, frozen=True, omit_defaults=True):
    """A key as it is now."""

    key: str
    waiting: Annotated[int, Meta(description="due, and in line behind the head")]
    more: Annotated[bool, Meta(description="whether there are more than were counted")] = False
    head: Annotated[EventView, Meta(description="the event that the others wait for, if one is due")] | None = None


class LinesApi(Resource, tag="ordering keys"):
    """The events of one ordering key."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @Route(
        "GET",
        KEY,
        "Read the head of a key and how many events wait behind it",
        (ResponseKind(200, "the key as it is now", LineView),),
        access="read",
    )
    async def look_at_key(self, request: HttpRequest, tenant: str, key: str) -> HttpResponse:
        """The head is the event that has to end before the next event of the key starts."""
        check_name(key, "key")
        line = await self._ask(GetLine(tenant, key))
        head = None if line.head is None else event_view(line.head)
        return json_response(LineView(key, line.waiting, line.is_more, head))

    @Route(
        "DELETE",
        KEY + "/head",
        "Cancel the head of a key",
        (ResponseKind(200, "the head is cancelled, and the key goes on", EventView, headers=("etag",)),),
        access="schedule",
        problems=(404, 409, 507),
        conditional=True,
        no_command="everbell unblock shows the head, and cancels it by its id and version",
    )
    async def drop_head(self, request: HttpRequest, tenant: str, key: str) -> HttpResponse:
        """The other events of the key no longer wait for it."""
        check_name(key, "key")
        line = await self._ask(GetLine(tenant, key))
        if line.head is None:
            raise NotFound(f"nothing of the key {key!r} is due, so it has no head to drop")
        return event_response(await self._ask(Cancel(tenant, line.head.event.id, version_of(request))))
