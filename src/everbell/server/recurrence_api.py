"""Recurring events over HTTP: when they will ring, and the times of a past range once more."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct, field

from everbell.core.backfill import backfill
from everbell.core.event import Event, Record, Repeat
from everbell.core.recurrence import ring_at, upcoming
from everbell.core.repeat_spec import RepeatSpec, first_of, repeat_of
from everbell.core.time import Duration, check_instant, parse_duration, parse_instant
from everbell.core.timetable import local_text
from everbell.engine.port import OperationsPort, Seen
from everbell.errors import Conflict, EverbellError, InvalidInput, Throttled
from everbell.server.batch_api import BatchError, error_view
from everbell.server.bodies import Body, read_query
from everbell.server.edge import Edge, check_id, trace_of
from everbell.server.message import Request, Response
from everbell.server.moments import Instant, instant
from everbell.server.views import json_response

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
    local: Annotated[str, Meta(description="what the clocks show in the zone of cron")] | None = None
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
    """What became of the occurrences of a range."""

    scheduled: Annotated[int, Meta(description="they ring now")]
    existing: Annotated[int, Meta(description="an earlier request scheduled them")]
    ids: Annotated[list[str | None], Meta(description="in the order of their times; null for what was rejected")]
    errors: list[BatchError]


class RecurrenceApi:
    """The handlers of `/preview` and `/backfill`."""

    def __init__(self, operations: OperationsPort, edge: Edge) -> None:
        self._operations = operations
        self._edge = edge
        self._previews = Body(PreviewSpec)
        self._ranges = Body(BackfillSpec)

    def preview(self, request: Request) -> Response:
        """The times of a recurrence that nobody has scheduled."""
        spec = self._previews.read(request)
        try:
            repeat = repeat_of(spec.repeat)
            due_at = first_of(repeat, self._start(spec), self._edge.now())
        except OverflowError:
            raise InvalidInput("a number is out of range") from None
        return _preview(upcoming(repeat, due_at), spec.count, repeat)

    async def preview_event(self, request: Request, tenant: str, event_id: str) -> Response:
        """The times of an event, beginning with the occurrence that it is at."""
        count = read_query(request, PreviewQuery).count
        event = await self._unfinished(tenant, check_id(event_id))
        if event.repeat is None:
            return _preview([(1, event.due_at)], count, None)
        return _preview(upcoming(event.repeat, event.due_at, event.occurrence), count, event.repeat, event.id)

    async def backfill(self, request: Request, tenant: str, event_id: str) -> Response:
        """Schedule the occurrences of a past range as single events."""
        spec = self._ranges.read(request)
        from_at, until_at = parse_instant(spec.from_, "from"), parse_instant(spec.until, "until")
        event = await self._unfinished(tenant, check_id(event_id))
        limit = self._edge.policy(tenant).limits.batch_events
        drafts = backfill(event, from_at, until_at, self._edge.now(), limit, trace_of(request))
        results = await self._operations.schedule(tenant, drafts) if drafts else []
        return _backfilled(results)

    async def _unfinished(self, tenant: str, event_id: str) -> Event:
        seen = await self._operations.get(tenant, event_id)
        if isinstance(seen.event, Record):
            raise Conflict(f"the event is already {seen.status}")
        return seen.event

    def _start(self, spec: PreviewSpec) -> int | None:
        if spec.at is not None and spec.in_ is not None:
            raise InvalidInput("give either at or in, not both", "in")
        if spec.in_ is not None:
            return check_instant(self._edge.now() + parse_duration(spec.in_), "in")
        return None if spec.at is None else parse_instant(spec.at)


def _preview(
    times: Iterable[tuple[int, int]], count: int, repeat: Repeat | None, event_id: str | None = None
) -> Response:
    """The id is known of what is scheduled; only then is the jitter, too."""
    found = list(islice(times, count + 1))
    zone = repeat.tz if repeat is not None and repeat.cron is not None else None
    jitters = repeat is not None and repeat.jitter_ms > 0 and event_id is not None
    shown = [
        OccurrenceView(
            number,
            instant(at),
            None if zone is None else local_text(at, zone),
            instant(ring_at(repeat, event_id or "", number, at)) if jitters else None,
        )
        for number, at in found[:count]
    ]
    return json_response(PreviewView(shown, len(found) > count))


def _backfilled(results: list[Seen | EverbellError]) -> Response:
    errors = [error_view(index, result) for index, result in enumerate(results) if isinstance(result, EverbellError)]
    seen = [result for result in results if isinstance(result, Seen)]
    if results and not seen:
        for result in results:
            if isinstance(result, EverbellError) and (result.status >= 500 or isinstance(result, Throttled)):
                raise result
    made = sum(result.created for result in seen)
    ids = [result.event.id if isinstance(result, Seen) else None for result in results]
    return json_response(BackfillView(made, len(seen) - made, ids, errors))
