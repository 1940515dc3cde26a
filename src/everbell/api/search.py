"""Many events at a time: find, cancel and reschedule them.

Cancelling can go page by page: a cancelled event leaves the search, so the next page is right. A rescheduled event
stays in the search, and one that moved ahead of the cursor would be found and moved again. So rescheduling finds all
matching events first, up to a limit, and then changes them. A client with more events, or one that shows progress,
finds them page by page and names each with its version, so that a repeated request changes nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.api.events import EVENTS
from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.views import EventsView, event_view, json_response
from everbell.core.amendment import Amendment
from everbell.core.event import Event, Status
from everbell.core.request import Ask
from everbell.core.spec import NAME_BYTES_MAX, ChangeSpec, Name, check_name
from everbell.core.target import TARGET_LENGTH_MAX
from everbell.core.time import Duration, parse_instant
from everbell.edge.bodies import Body, read_query
from everbell.edge.drafting import Edge, check_id
from everbell.engine.bulk import on_page
from everbell.engine.requests import Amend, Cancel, CancelMatching, Find
from everbell.engine.seen import Seen
from everbell.errors import Conflict, EverbellError, InvalidInput
from everbell.http.message import HttpRequest, HttpResponse
from everbell.stores.port import Filter

PAGE_EVENTS = 100
PAGE_EVENTS_MAX = 1_000
RESCHEDULED_MAX = 100_000
"""How many events one request finds and reschedules."""
COUNTED_MAX = 100_000
"""How many events one request counts."""
_ERRORS_SHOWN = 100
_AT_A_TIME = 500

# Not None: in a query, where all is text, the name "null" would be taken for it.
KeyField = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, description="of this key")] | UnsetType
TagField = Annotated[str, Meta(min_length=1, max_length=64, description="with this tag")] | UnsetType
TargetField = (
    Annotated[str, Meta(min_length=1, max_length=TARGET_LENGTH_MAX, description="of this receiver, as in …/targets")]
    | UnsetType
)
ReasonField = (
    Annotated[str, Meta(min_length=1, max_length=2_000, description="dead for exactly this reason")] | UnsetType
)
TimeField = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
CursorField = Annotated[str, Meta(min_length=1, max_length=4_096, description="from the page before")] | UnsetType

StatusField = Annotated[Status, Meta(description="without it: neither finished nor dead")] | UnsetType
RepeatsField = Annotated[bool, Meta(description="only events that repeat")]


class Selection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The events that match all given fields."""

    key: KeyField = UNSET
    tag: TagField = UNSET
    to: (
        Annotated[str, Meta(min_length=1, max_length=TARGET_LENGTH_MAX, description="the beginning of the target")]
        | UnsetType
    ) = UNSET
    id_prefix: (
        Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, description="the beginning of the id")] | UnsetType
    ) = UNSET
    from_: Annotated[TimeField, Meta(description="due at this time or later")] | UnsetType = msgspec.field(
        default=UNSET, name="from"
    )
    until: Annotated[TimeField, Meta(description="due at this time or earlier")] | UnsetType = UNSET
    attempts: Annotated[int, Meta(ge=1, le=1_000_000, description="with at least this number of attempts")] = 0
    target: TargetField = UNSET
    reason: ReasonField = UNSET

    @property
    def is_empty(self) -> bool:
        """Whether it means all events of a tenant."""
        given = (self.key, self.tag, self.to, self.id_prefix, self.from_, self.until, self.target, self.reason)
        return all(part is UNSET for part in given) and not self.attempts


class PageQuery(Selection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events, and which page of them."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_EVENTS_MAX, description="the maximum number in the answer")] = PAGE_EVENTS
    cursor: CursorField = UNSET


class CountQuery(Selection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Without a status: events that are neither finished nor dead."""

    status: StatusField = UNSET
    repeats: RepeatsField = False


class FindQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Without a status: events that are neither finished nor dead."""

    status: StatusField = UNSET
    repeats: RepeatsField = False


class CountView(Struct, frozen=True):
    """How many events match."""

    count: int
    more: bool
    """Whether there are more than were counted."""


class CancelQuery(Selection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The events that match, by at least one field; and how many in one request, if not all."""

    limit: (
        Annotated[int, Meta(ge=1, le=PAGE_EVENTS_MAX, description="the maximum number; the answer has a cursor")]
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
    """A new time for many events: one of `at`, `in` and `by`. The events are named here, or chosen by the query."""

    at: str | UnsetType = UNSET
    in_: Duration | UnsetType = msgspec.field(default=UNSET, name="in")
    by: Annotated[str, Meta(description="a duration later than each is due, or earlier: 2h, -30m")] | UnsetType = UNSET
    events: Annotated[list[NamedEvent], Meta(min_length=1, max_length=PAGE_EVENTS_MAX)] | UnsetType = UNSET


class SkippedError(Struct, frozen=True):
    """The reason why one event was skipped."""

    id: str
    status: int
    title: str
    detail: str


class RescheduledView(Struct, frozen=True):
    """How many events were rescheduled and skipped, and the reasons for some."""

    rescheduled: int
    skipped: int
    errors: Annotated[list[SkippedError], Meta(max_length=_ERRORS_SHOWN)]


FOUND = ResponseKind(200, "one page", EventsView)
CANCELLED = ResponseKind(200, "the events are cancelled", CancelledView)


class SearchApi(Resource, tag="many events"):
    """Many events in one request."""

    def __init__(self, ask: Ask, edge: Edge) -> None:
        self._ask = ask
        self._edge = edge
        self._times = Body(RescheduleSpec)

    @Route("GET", EVENTS, "Find events", (FOUND,), access="read", shared=True, query=FindQuery, large=True)
    async def find_events(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Without a status, the events that are neither finished nor dead. Follow the cursor until there is none."""
        query = read_query(request, FindQuery)
        status = None if query.status is UNSET else query.status
        return await find_page(self._ask, self._edge, selection(tenant, status, query, repeats=query.repeats), query)

    @Route(
        "GET",
        TENANT + "/count",
        "Count events",
        (ResponseKind(200, "the number of matching events", CountView),),
        access="read",
        query=CountQuery,
        no_client="the operations page asks how many events an action is about; a program finds them page by page",
        no_command="everbell list finds them, and everbell forecast counts the due ones",
    )
    async def count_events(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Without a status, the events that are neither finished nor dead. The server counts up to 100,000 events."""
        query = read_query(request, CountQuery)
        status = None if query.status is UNSET else query.status
        chosen = selection(tenant, status, query, repeats=query.repeats)
        # By name, because an event that moves while the server counts is found again at its new place.
        names: set[tuple[str, int]] = set()
        cursor: str | None = None
        while len(names) < COUNTED_MAX:
            found, cursor = await self._ask(Find(chosen, cursor, PAGE_EVENTS_MAX))
            names.update(_name(seen) for seen in found if status is None or seen.status == status)
            if cursor is None:
                break
        return json_response(CountView(len(names), cursor is not None))

    @Route(
        "DELETE",
        EVENTS,
        "Cancel all events that match",
        (CANCELLED,),
        access="schedule",
        problems=(507,),
        query=CancelQuery,
    )
    async def cancel_events(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Finished and dead events stay as they are. With a limit, one page is cancelled."""
        query = read_query(request, CancelQuery)
        if query.is_empty:
            raise InvalidInput("say which events to cancel: give key, tag, to, id_prefix, from or until", "key")
        return await cancel_found(self._ask, request, query, selection(tenant, None, query))

    @Route(
        "PATCH",
        EVENTS,
        "Reschedule named events, or all that match",
        (ResponseKind(200, "the events have their new times", RescheduledView),),
        access="schedule",
        problems=(409, 507),
        query=Selection,
        body=RescheduleSpec,
        example={"by": "2h", "events": [{"id": "order-17-timeout", "version": 1}]},
    )
    async def reschedule_events(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Give one of `at`, `in` and `by`. Events that could not be rescheduled are skipped; the answer says why."""
        query, spec = read_query(request, Selection), self._times.read(request)
        change = ChangeSpec(at=spec.at, in_=spec.in_, by=spec.by)
        if (spec.at, spec.in_, spec.by) == (UNSET, UNSET, UNSET):
            raise InvalidInput("give one of at, in and by", "at")
        amendment = self._edge.amendment(change, tenant)
        if (spec.events is UNSET) == query.is_empty:
            raise InvalidInput("say which events: name them in events, or give key, tag, to, id_prefix, from or until")
        request.subject = _as_text(request.query) or "named events"
        if spec.events is not UNSET:
            named = {event.id: event.version for event in spec.events}
            chosen = [(check_id(event_id), version) for event_id, version in named.items()]
        else:
            chosen = await self._all(selection(tenant, None, query))
        view = await self._reschedule(tenant, chosen, amendment)
        request.affected = view.rescheduled
        return json_response(view)

    async def _reschedule(
        self, tenant: str, chosen: Sequence[tuple[str, int | None]], amendment: Amendment
    ) -> RescheduledView:
        done, errors = 0, []
        for start in range(0, len(chosen), _AT_A_TIME):
            some = chosen[start : start + _AT_A_TIME]
            calls = [self._ask(Amend(tenant, event_id, amendment, version)) for event_id, version in some]
            for (event_id, _), result in zip(some, await asyncio.gather(*calls, return_exceptions=True), strict=True):
                if isinstance(result, Seen):
                    done += 1
                else:
                    errors.append(skipped(event_id, result))
        return RescheduledView(done, len(errors), errors[:_ERRORS_SHOWN])

    async def _all(self, chosen: Filter) -> list[tuple[str, int | None]]:
        """The ids of all events that match. Raises `Conflict` when there are too many."""
        names: list[tuple[str, int | None]] = []
        cursor: str | None = None
        while True:
            found, cursor = await self._ask(Find(chosen, cursor, PAGE_EVENTS_MAX))
            names += [(seen.event.id, None) for seen in found if isinstance(seen.event, Event)]
            if len(names) > RESCHEDULED_MAX:
                raise Conflict(f"more than {RESCHEDULED_MAX} events match: narrow it down, or find and name them")
            if cursor is None:
                return list(dict.fromkeys(names))


async def find_page(ask: Ask, edge: Edge, chosen: Filter, query: PageQuery) -> HttpResponse:
    """One page of the events that match."""
    hidden = edge.hides_payloads(chosen.tenant)
    status = chosen.status
    found, following = await ask(Find(chosen, _given(query.cursor), query.limit))
    # A store does not know which events are being delivered at this moment, so it may have found too many.
    events = [event_view(seen, hidden=hidden) for seen in found if status is None or seen.status == status]
    return json_response(EventsView(events, following))


async def cancel_found(ask: Ask, request: HttpRequest, query: CancelQuery, chosen: Filter) -> HttpResponse:
    """Cancel all events that match, or one page of them if the query has a limit."""
    request.subject = _as_text(request.query)
    if query.limit is UNSET:
        if query.cursor is not UNSET:
            raise InvalidInput("goes with limit", "cursor")
        request.affected = await ask(CancelMatching(chosen))
        return json_response(CancelledView(request.affected))
    cancelled, cursor = await on_page(
        ask, chosen, _given(query.cursor), query.limit, lambda event: Cancel(chosen.tenant, event.id)
    )
    request.affected = cancelled
    return json_response(CancelledView(cancelled, cursor))


def selection(tenant: str, status: Status | None, chosen: Selection, *, repeats: bool = False) -> Filter:
    """The filter for the events that a user selected."""
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
        repeats=repeats,
        attempts_min=chosen.attempts,
        target=_given(chosen.target),
        reason=_given(chosen.reason),
    )


def skipped(event_id: str, error: BaseException) -> SkippedError:
    """The reason why one event of many was skipped. An error that is not about that event is raised."""
    if not isinstance(error, EverbellError) or error.status >= 500:
        raise error
    return SkippedError(event_id, error.status, error.title, str(error))


def _name(seen: Seen) -> tuple[str, int]:
    """An unfinished event counts once, and each of its finished occurrences counts."""
    return seen.event.id, 0 if isinstance(seen.event, Event) else seen.event.occurrence


def _given(value: str | UnsetType) -> str | None:
    return None if value is UNSET else value


def _as_text(query: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in query.items())
