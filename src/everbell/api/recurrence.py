"""Recurring events over HTTP: preview their times, and deliver for the times of a past range."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct, field

from everbell.api.batches import BatchError, error_view
from everbell.api.events import EVENT
from everbell.api.route import Resource, ResponseKind, Route
from everbell.api.timestamps import Instant, instant
from everbell.api.views import json_response
from everbell.core.backfill import backfill
from everbell.core.event import Event, Record, Repeat
from everbell.core.recurrence import ring_at, upcoming
from everbell.core.repeat_spec import RepeatSpec, first_of, repeat_of
from everbell.core.request import Ask
from everbell.core.time import Duration, check_instant, parse_duration, parse_instant
from everbell.core.timetable import local_text
from everbell.edge.bodies import Body, read_query
from everbell.edge.drafting import Edge, check_id, trace_of
from everbell.edge.turns import in_turns
from everbell.engine.requests import Get, Schedule
from everbell.engine.seen import DraftResult, Seen
from everbell.errors import Conflict, EverbellError, InvalidInput, Throttled
from everbell.http.message import HttpRequest, HttpResponse

Count = Annotated[int, Meta(ge=1, le=1_000, description="how many times to show")]


class PreviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How far to look ahead."""

    count: Count = 10


class PreviewSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A recurrence that is not scheduled yet."""

    repeat: RepeatSpec
    at: Annotated[str, Meta(description="where it begins, as in an event")] | None = None
    in_: Annotated[Duration, Meta(description="where it begins, from now")] | None = field(default=None, name="in")
    count: Count = 10


class OccurrenceView(Struct, frozen=True, omit_defaults=True, gc=False):
    """One time at which an event is due."""

    number: int
    at: Instant
    local: Annotated[str, Meta(description="the local time in the zone of cron")] | None = None
    rings_at: Annotated[Instant, Meta(description="with jitter")] | None = None


class PreviewView(Struct, frozen=True):
    """The next times of a recurring event."""

    occurrences: list[OccurrenceView]
    more: Annotated[bool, Meta(description="whether others follow")]


class BackfillSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A range of the past, both ends included."""

    from_: str = field(name="from")
    until: str


class BackfillView(Struct, frozen=True):
    """The outcome of a backfill."""

    scheduled: Annotated[int, Meta(description="they are due now")]
    existing: Annotated[int, Meta(description="an earlier request scheduled them")]
    ids: Annotated[list[str | None], Meta(description="in the order of their times; null for a rejected one")]
    errors: list[BatchError]


_PER_TURN = 100
"""How many times are calculated before other requests have their turn."""

_SHOWN = ResponseKind(200, "the next times", PreviewView)


class RecurrenceApi(Resource, tag="recurring events"):
    """Events that repeat."""

    def __init__(self, ask: Ask, edge: Edge) -> None:
        self._ask = ask
        self._edge = edge
        self._previews = Body(PreviewSpec)
        self._ranges = Body(BackfillSpec)

    @Route(
        "POST",
        "/v1/preview",
        "Preview the times of a recurrence",
        (_SHOWN,),
        access="any",
        body=PreviewSpec,
        example={"repeat": {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin"}, "count": 3},
        routine=True,
        no_command="everbell preview calculates the times without a server",
    )
    async def preview(self, request: HttpRequest) -> HttpResponse:
        """Nothing is scheduled."""
        spec = self._previews.read(request)
        try:
            repeat = repeat_of(spec.repeat)
            due_at = first_of(repeat, self._start(spec), self._edge.now())
        except OverflowError:
            raise InvalidInput("a number is out of range") from None
        return await _preview(upcoming(repeat, due_at), spec.count, repeat)

    @Route(
        "GET",
        EVENT + "/preview",
        "Preview the times of an event",
        (_SHOWN,),
        access="read",
        problems=(404, 409),
        query=PreviewQuery,
    )
    async def preview_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """The times begin with the current occurrence."""
        count = read_query(request, PreviewQuery).count
        event = await self._unfinished(tenant, check_id(event_id))
        if event.repeat is None:
            return await _preview([(1, event.due_at)], count, None)
        return await _preview(upcoming(event.repeat, event.due_at, event.occurrence), count, event.repeat, event.id)

    @Route(
        "POST",
        EVENT + "/backfill",
        "Deliver for the times of a past range, again or for the first time",
        (ResponseKind(200, "each time is scheduled as an event of its own", BackfillView),),
        access="schedule",
        problems=(404, 409, 429, 507),
        body=BackfillSpec,
        example={"from": "2025-11-01T00:00:00Z", "until": "2025-11-02T00:00:00Z"},
    )
    async def backfill_event(self, request: HttpRequest, tenant: str, event_id: str) -> HttpResponse:
        """The event has to repeat. A repeated request schedules nothing twice."""
        spec = self._ranges.read(request)
        from_at, until_at = parse_instant(spec.from_, "from"), parse_instant(spec.until, "until")
        event = await self._unfinished(tenant, check_id(event_id))
        limit = self._edge.policy(tenant).limits.batch_events
        drafts = await in_turns(
            backfill(event, from_at, until_at, self._edge.now(), limit, trace_of(request)), _PER_TURN
        )
        results = await self._ask(Schedule(tenant, drafts)) if drafts else []
        return _backfilled(results)

    async def _unfinished(self, tenant: str, event_id: str) -> Event:
        seen = await self._ask(Get(tenant, event_id))
        if isinstance(seen.event, Record):
            raise Conflict(f"the event is already {seen.status}")
        return seen.event

    def _start(self, spec: PreviewSpec) -> int | None:
        if spec.at is not None and spec.in_ is not None:
            raise InvalidInput("give either at or in, not both", "in")
        if spec.in_ is not None:
            return check_instant(self._edge.now() + parse_duration(spec.in_), "in")
        return None if spec.at is None else parse_instant(spec.at)


async def _preview(
    times: Iterable[tuple[int, int]], count: int, repeat: Repeat | None, event_id: str | None = None
) -> HttpResponse:
    """The answer. Jitter depends on the id, so only a scheduled event has it."""
    found = await in_turns(islice(times, count + 1), _PER_TURN)
    zone = repeat.tz if repeat is not None and repeat.cron is not None else None
    jitters = repeat is not None and repeat.jitter_ms > 0 and event_id is not None
    shown = (
        OccurrenceView(
            number,
            instant(at),
            None if zone is None else local_text(at, zone),
            instant(ring_at(repeat, event_id or "", number, at)) if jitters else None,
        )
        for number, at in found[:count]
    )
    return json_response(PreviewView(await in_turns(shown, _PER_TURN), len(found) > count))


def _backfilled(results: Sequence[DraftResult]) -> HttpResponse:
    errors = [error_view(index, result) for index, result in enumerate(results) if isinstance(result, EverbellError)]
    if len(errors) == len(results):
        for result in results:
            if isinstance(result, EverbellError) and (result.status >= 500 or isinstance(result, Throttled)):
                raise result
    made = sum(isinstance(result, str) for result in results)
    ids = [result.event.id if isinstance(result, Seen) else result for result in results]
    known = [None if isinstance(event_id, EverbellError) else event_id for event_id in ids]
    return json_response(BackfillView(made, len(results) - made - len(errors), known, errors))
