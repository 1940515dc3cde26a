"""Ordering keys over HTTP: those that are blocked, the head of each, and how to drop a head that is stuck."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.api.route import TENANT, MayRead, Resource, ResponseKind, Route
from everbell.api.views import ChangedView, EventView, event_response, event_view, json_response
from everbell.core.request import Ask
from everbell.core.spec import check_name
from everbell.edge.bodies import read_query, version_of
from everbell.edge.drafting import Edge
from everbell.engine.requests import Cancel, GetLine
from everbell.engine.seen import KeyLine
from everbell.engine.view_requests import GetBlockedKeys
from everbell.errors import NotFound
from everbell.http.message import HttpRequest, HttpResponse

KEYS = TENANT + "/keys"
KEY = KEYS + "/{ordering_key}"
KEYS_MAX = 1_000


class LineView(Struct, frozen=True, omit_defaults=True):
    """A key as it is now."""

    key: str
    waiting: Annotated[int, Meta(description="due, and in line behind the head")]
    more: Annotated[bool, Meta(description="whether there are more than were counted")] = False
    head: Annotated[EventView, Meta(description="the event that the others wait for, if one is due")] | None = None


class LinesView(Struct, frozen=True, omit_defaults=True):
    """Keys that are blocked by their head, by name."""

    keys: list[LineView]
    more: Annotated[bool, Meta(description="whether there are more such keys")] = False
    unheard: Annotated[tuple[str, ...], Meta(description="nodes that did not answer, so keys may be missing")] = ()


class KeysQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many keys."""

    limit: Annotated[int, Meta(ge=1, le=KEYS_MAX, description="the maximum number in the answer")] = 100


class LinesApi(Resource, tag="ordering keys"):
    """Ordering keys, and the events that wait for their heads."""

    def __init__(self, ask: Ask, edge: Edge, may_read: MayRead) -> None:
        self._ask = ask
        self._edge = edge
        self._may_read = may_read

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
        return json_response(self._line_view(tenant, key, await self._ask(GetLine(tenant, key))))

    @Route(
        "GET",
        KEYS,
        "List the keys that are blocked by their head",
        (ResponseKind(200, "the blocked keys", LinesView),),
        access="read",
        shared=True,
        query=KeysQuery,
    )
    async def list_blocked_keys(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """All nodes are asked. The list counts up to 100 waiting events of each key."""
        found = await self._ask(GetBlockedKeys(tenant, read_query(request, KeysQuery).limit))
        lines = [self._line_view(tenant, key, line) for key, line in found.lines]
        return json_response(LinesView(lines, found.is_more, found.unheard))

    @Route(
        "DELETE",
        KEY + "/head",
        "Cancel the head of a key",
        (ResponseKind(200, "the head is cancelled, and the key goes on", EventView | ChangedView, headers=("etag",)),),
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
        cancelled = await self._ask(Cancel(tenant, line.head.event.id, version_of(request)))
        return event_response(
            cancelled, hidden=self._edge.hides_payloads(tenant), may_read=self._may_read(request, tenant)
        )

    def _line_view(self, tenant: str, key: str, line: KeyLine) -> LineView:
        hidden = self._edge.hides_payloads(tenant)
        return LineView(
            key, line.waiting, line.is_more, None if line.head is None else event_view(line.head, hidden=hidden)
        )
