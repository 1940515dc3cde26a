"""Many events at a time: find them, cancel them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.core.event import Status
from everbell.core.spec import NAME_BYTES_MAX, check_name
from everbell.core.time import parse_instant
from everbell.engine.port import OperationsPort
from everbell.errors import InvalidInput
from everbell.server.bodies import read_query
from everbell.server.message import Request, Response
from everbell.server.views import EventsView, event_view, json_response
from everbell.stores.port import Filter

PAGE_EVENTS = 100
PAGE_EVENTS_MAX = 1_000

# Not None: in a query, where all is text, the name "null" would be taken for it.
KeyField = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, description="of this key")] | UnsetType
TagField = Annotated[str, Meta(min_length=1, max_length=64, description="with this tag")] | UnsetType
TimeField = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class SelectionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which events; at least one of them."""

    key: KeyField = UNSET
    tag: TagField = UNSET


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events, and which page of them."""

    key: KeyField = UNSET
    tag: TagField = UNSET
    from_: Annotated[TimeField, Meta(description="due at this time or later")] | UnsetType = msgspec.field(
        default=UNSET, name="from"
    )
    until: Annotated[TimeField, Meta(description="due at this time or earlier")] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=PAGE_EVENTS_MAX, description="at most so many in the answer")] = PAGE_EVENTS
    cursor: Annotated[str, Meta(min_length=1, max_length=4_096, description="from the page before")] | UnsetType = UNSET


class FindQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Without a status: what is neither finished nor dead."""

    status: Status | UnsetType = UNSET


class CancelledView(Struct, frozen=True):
    """How many events were cancelled."""

    cancelled: int


class SearchApi:
    """The handlers of `/events` and `/dead`, for many events."""

    def __init__(self, operations: OperationsPort) -> None:
        self._operations = operations

    async def find(self, request: Request, tenant: str) -> Response:
        """One page of the events that match."""
        query = read_query(request, FindQuery)
        return await self._page(tenant, query, None if query.status is UNSET else query.status)

    async def find_dead(self, request: Request, tenant: str) -> Response:
        """One page of the dead events that match, with the reason and the attempts."""
        return await self._page(tenant, read_query(request, PageQuery), "dead")

    async def cancel(self, request: Request, tenant: str) -> Response:
        """Cancel all that match and are neither finished nor dead."""
        query = read_query(request, SelectionQuery)
        if query.key is UNSET and query.tag is UNSET:
            raise InvalidInput("say which events to cancel: give key, or tag, or both", "key")
        request.subject = " ".join(f"{name}={value}" for name, value in request.query.items())
        cancelled = await self._operations.cancel_matching(selection(tenant, None, query.key, query.tag))
        return json_response(CancelledView(cancelled))

    async def _page(self, tenant: str, query: PageQuery, status: Status | None) -> Response:
        chosen = selection(tenant, status, query.key, query.tag)
        chosen = msgspec.structs.replace(
            chosen,
            from_at=None if query.from_ is UNSET else parse_instant(query.from_, "from"),
            until_at=None if query.until is UNSET else parse_instant(query.until, "until"),
        )
        cursor = None if query.cursor is UNSET else query.cursor
        found, following = await self._operations.find(chosen, cursor, query.limit)
        # A store cannot tell what is being delivered at this moment, so it may have found too much.
        events = [event_view(seen) for seen in found if status is None or seen.status == status]
        return json_response(EventsView(events, following))


def selection(tenant: str, status: Status | None, key: str | UnsetType, tag: str | UnsetType) -> Filter:
    """The filter for what a user named."""
    if key is not UNSET:
        check_name(key, "key")
    if tag is not UNSET:
        check_name(tag, "tag")
    return Filter(tenant, status, None if key is UNSET else key, None if tag is UNSET else tag)
