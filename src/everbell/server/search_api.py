"""Many events at a time: find them, cancel them, give them another time.

Cancelling goes page by page, if that is asked for: what is cancelled leaves the search, so the next page is right.
Rescheduled events stay in it, and one that moved ahead of the search would be found and moved again. So all that match
are found first, up to a limit, and changed then; whoever has more of them, or wants to see progress, finds them page by
page and names them, each with its version, so that a request which is repeated changes nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.core.event import Event, Status
from everbell.core.spec import NAME_BYTES_MAX, ChangeSpec, Name, check_name
from everbell.core.target import TARGET_LENGTH_MAX
from everbell.core.time import Duration, parse_instant
from everbell.engine.bulk import on_page
from everbell.engine.port import OperationsPort, Seen
from everbell.errors import Conflict, EverbellError, InvalidInput
from everbell.server.bodies import Body, read_query
from everbell.server.edge import Edge, check_id
from everbell.server.message import Request, Response
from everbell.server.views import EventsView, event_view, json_response
from everbell.stores.port import Filter

PAGE_EVENTS = 100
PAGE_EVENTS_MAX = 1_000
RESCHEDULED_MAX = 100_000
"""How many events one request finds and gives another time."""
_ERRORS_SHOWN = 100
_AT_A_TIME = 500

# Not None: in a query, where all is text, the name "null" would be taken for it.
KeyField = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, description="of this key")] | UnsetType
TagField = Annotated[str, Meta(min_length=1, max_length=64, description="with this tag")] | UnsetType
TimeField = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
CursorField = Annotated[str, Meta(min_length=1, max_length=4_096, description="from the page before")] | UnsetType


class Selection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events: those that match all that is given."""

    key: KeyField = UNSET
    tag: TagField = UNSET
    to: (
        Annotated[str, Meta(min_length=1, max_length=TARGET_LENGTH_MAX, description="whose target begins so")]
        | UnsetType
    ) = UNSET
    id_prefix: (
        Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, description="whose id begins so")] | UnsetType
    ) = UNSET
    from_: Annotated[TimeField, Meta(description="due at this time or later")] | UnsetType = msgspec.field(
        default=UNSET, name="from"
    )
    until: Annotated[TimeField, Meta(description="due at this time or earlier")] | UnsetType = UNSET

    @property
    def is_empty(self) -> bool:
        """Whether it means all events of a tenant."""
        given = (self.key, self.tag, self.to, self.id_prefix, self.from_, self.until)
        return all(part is UNSET for part in given)


class PageQuery(Selection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events, and which page of them."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_EVENTS_MAX, description="at most so many in the answer")] = PAGE_EVENTS
    cursor: CursorField = UNSET


class FindQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Without a status: what is neither finished nor dead."""

    status: Annotated[Status, Meta(description="as it is; else what is neither finished nor dead")] | UnsetType = UNSET


class CancelQuery(Selection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events, at least by one thing; and how many in one request, if not all."""

    limit: (
        Annotated[int, Meta(ge=1, le=PAGE_EVENTS_MAX, description="at most so many; the answer has a cursor")]
        | UnsetType
    ) = UNSET
    cursor: CursorField = UNSET


class CancelledView(Struct, frozen=True, omit_defaults=True):
    """How many events were cancelled. Where a limit was given, it goes on while there is a cursor."""

    cancelled: int
    cursor: str | None = None


class NamedEvent(Struct, frozen=True, forbid_unknown_fields=True):
    """An event, and the version that it must have, if that matters."""

    id: Name
    version: Annotated[int, Meta(ge=1)] | None = None


class RescheduleSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Another time for many events: one of `at`, `in` and `by`. The events are named here, or chosen by the query."""

    at: str | UnsetType = UNSET
    in_: Duration | UnsetType = msgspec.field(default=UNSET, name="in")
    by: Annotated[str, Meta(description="so much later than each is due, or earlier: 2h, -30m")] | UnsetType = UNSET
    events: Annotated[list[NamedEvent], Meta(min_length=1, max_length=PAGE_EVENTS_MAX)] | UnsetType = UNSET


class SkippedError(Struct, frozen=True):
    """Why one event was left as it was."""

    id: str
    status: int
    title: str
    detail: str


class RescheduledView(Struct, frozen=True):
    """How many events got another time, how many did not, and why, of some."""

    rescheduled: int
    skipped: int
    errors: Annotated[list[SkippedError], Meta(max_length=_ERRORS_SHOWN)]


class SearchApi:
    """The handlers of `/events` and `/dead`, for many events."""

    def __init__(self, operations: OperationsPort, edge: Edge) -> None:
        self._operations = operations
        self._edge = edge
        self._times = Body(RescheduleSpec)

    async def find(self, request: Request, tenant: str) -> Response:
        """One page of the events that match."""
        query = read_query(request, FindQuery)
        return await self._page(tenant, query, None if query.status is UNSET else query.status)

    async def find_dead(self, request: Request, tenant: str) -> Response:
        """One page of the dead events that match, with the reason and the attempts."""
        return await self._page(tenant, read_query(request, PageQuery), "dead")

    async def cancel(self, request: Request, tenant: str) -> Response:
        """Cancel all that match and are neither finished nor dead, or one page of them."""
        query = read_query(request, CancelQuery)
        if query.is_empty:
            raise InvalidInput("say which events to cancel: give key, tag, to, id_prefix, from or until", "key")
        return await self._cancel(request, query, selection(tenant, None, query))

    async def discard(self, request: Request, tenant: str) -> Response:
        """Cancel all dead events that match, or one page of them."""
        query = read_query(request, CancelQuery)
        return await self._cancel(request, query, selection(tenant, "dead", query))

    async def reschedule(self, request: Request, tenant: str) -> Response:
        """Give many events another time."""
        query, spec = read_query(request, Selection), self._times.read(request)
        change = ChangeSpec(at=spec.at, in_=spec.in_, by=spec.by)
        if (spec.at, spec.in_, spec.by) == (UNSET, UNSET, UNSET):
            raise InvalidInput("give one of at, in and by", "at")
        fields = self._edge.changes(change, tenant)
        if (spec.events is UNSET) == query.is_empty:
            raise InvalidInput("say which events: name them in events, or give key, tag, to, id_prefix, from or until")
        request.subject = _said(request) or "named events"
        if spec.events is not UNSET:
            named = {event.id: event.version for event in spec.events}
            chosen = [(check_id(event_id), version) for event_id, version in named.items()]
        else:
            chosen = await self._all(selection(tenant, None, query))
        return json_response(await self._reschedule(tenant, chosen, fields))

    async def _reschedule(
        self, tenant: str, chosen: Sequence[tuple[str, int | None]], fields: dict[str, object]
    ) -> RescheduledView:
        done, errors = 0, []
        for start in range(0, len(chosen), _AT_A_TIME):
            some = chosen[start : start + _AT_A_TIME]
            calls = [self._operations.change(tenant, event_id, fields, version) for event_id, version in some]
            for (event_id, _), result in zip(some, await asyncio.gather(*calls, return_exceptions=True), strict=True):
                if isinstance(result, Seen):
                    done += 1
                else:
                    errors.append(skipped(event_id, result))
        return RescheduledView(done, len(errors), errors[:_ERRORS_SHOWN])

    async def _all(self, chosen: Filter) -> list[tuple[str, int | None]]:
        """The names of all that match. Raises `Conflict` when they are too many."""
        names: list[tuple[str, int | None]] = []
        cursor: str | None = None
        while True:
            found, cursor = await self._operations.find(chosen, cursor, PAGE_EVENTS_MAX)
            names += [(seen.event.id, None) for seen in found if isinstance(seen.event, Event)]
            if len(names) > RESCHEDULED_MAX:
                raise Conflict(f"more than {RESCHEDULED_MAX} events match: narrow it down, or find and name them")
            if cursor is None:
                return list(dict.fromkeys(names))

    async def _cancel(self, request: Request, query: CancelQuery, chosen: Filter) -> Response:
        request.subject = _said(request)
        if query.limit is UNSET:
            if query.cursor is not UNSET:
                raise InvalidInput("goes with limit", "cursor")
            return json_response(CancelledView(await self._operations.cancel_matching(chosen)))
        cursor = None if query.cursor is UNSET else query.cursor
        cancelled, cursor = await on_page(
            self._operations.find,
            chosen,
            cursor,
            query.limit,
            lambda event: self._operations.cancel(chosen.tenant, event.id),
        )
        return json_response(CancelledView(cancelled, cursor))

    async def _page(self, tenant: str, query: PageQuery, status: Status | None) -> Response:
        cursor = None if query.cursor is UNSET else query.cursor
        found, following = await self._operations.find(selection(tenant, status, query), cursor, query.limit)
        # A store cannot tell what is being delivered at this moment, so it may have found too much.
        events = [event_view(seen) for seen in found if status is None or seen.status == status]
        return json_response(EventsView(events, following))


def selection(tenant: str, status: Status | None, chosen: Selection) -> Filter:
    """The filter for what a user chose."""
    for name in ("key", "tag", "id_prefix"):
        value = getattr(chosen, name)
        if value is not UNSET:
            check_name(value, name)
    return Filter(
        tenant,
        status,
        _given(chosen.key),
        _given(chosen.tag),
        None if chosen.from_ is UNSET else parse_instant(chosen.from_, "from"),
        None if chosen.until is UNSET else parse_instant(chosen.until, "until"),
        _given(chosen.to),
        _given(chosen.id_prefix),
    )


def skipped(event_id: str, error: BaseException) -> SkippedError:
    """Why one of many was left as it was. What is not about that one is raised."""
    if not isinstance(error, EverbellError) or error.status >= 500:
        raise error
    return SkippedError(event_id, error.status, error.title, str(error))


def _given(value: str | UnsetType) -> str | None:
    return None if value is UNSET else value


def _said(request: Request) -> str:
    return " ".join(f"{name}={value}" for name, value in request.query.items())
