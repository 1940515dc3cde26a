"""The routes of many events: batches, searches, what is done to all that match, dead events, keys and forecasts."""

from __future__ import annotations

from everbell.core.spec import EventSpec
from everbell.server.batch_api import BatchApi, BatchView
from everbell.server.dead_api import DeadApi, RedrivenView, RedriveSpec
from everbell.server.forecast_api import ForecastApi, ForecastQuery, ForecastView
from everbell.server.lines_api import LinesApi, LineView
from everbell.server.route import JSON, LINES, Answer, Route
from everbell.server.routes import DEAD, EVENTS, TENANT
from everbell.server.search_api import (
    CancelledView,
    CancelQuery,
    FindQuery,
    PageQuery,
    RescheduledView,
    RescheduleSpec,
    SearchApi,
    Selection,
)
from everbell.server.views import EventsView, EventView

KEY = TENANT + "/keys/{ordering_key}"

_FOUND = Answer(200, "one page", (EventsView,))


def event_set_routes(batch: BatchApi, search: SearchApi) -> tuple[Route, ...]:
    """Many events."""
    return (
        Route(
            "POST",
            EVENTS + "/batch",
            batch.schedule,
            "schedule_batch",
            "Schedule many events: one a line, or an array",
            (
                Answer(201, "all were accepted", (BatchView,)),
                Answer(207, "some were accepted", (BatchView,)),
                Answer(422, "none was accepted", (BatchView,)),
            ),
            (413, 415, 422, 429, 507),
            body=list[EventSpec],
            body_types=(JSON, LINES),
            once=True,
            access="schedule",
            routine=True,
        ),
        Route(
            "GET",
            EVENTS,
            search.find,
            "find_events",
            "Find events",
            (_FOUND,),
            (422,),
            query=FindQuery,
            access="read",
            large=True,
        ),
        Route(
            "DELETE",
            EVENTS,
            search.cancel,
            "cancel_events",
            "Cancel all events that match",
            (Answer(200, "they are cancelled", (CancelledView,)),),
            (422, 507),
            query=CancelQuery,
            access="schedule",
        ),
        Route(
            "PATCH",
            EVENTS,
            search.reschedule,
            "reschedule_events",
            "Give events that are named, or all that match, another time",
            (Answer(200, "they will ring then", (RescheduledView,)),),
            (409, 413, 415, 422, 507),
            query=Selection,
            body=RescheduleSpec,
            access="schedule",
        ),
    )


def dead_routes(search: SearchApi, dead: DeadApi) -> tuple[Route, ...]:
    """Dead events."""
    return (
        Route(
            "GET",
            DEAD,
            search.find_dead,
            "find_dead",
            "Find dead events",
            (_FOUND,),
            (422,),
            query=PageQuery,
            access="read",
            large=True,
        ),
        Route(
            "DELETE",
            DEAD,
            search.discard,
            "discard_dead",
            "Discard all dead events that match",
            (Answer(200, "they are cancelled", (CancelledView,)),),
            (422, 507),
            query=CancelQuery,
            access="schedule",
        ),
        Route(
            "POST",
            DEAD + "/redrive",
            dead.redrive,
            "redrive_dead",
            "Give dead events a new set of attempts",
            (Answer(200, "they are scheduled again", (RedrivenView,)),),
            (413, 415, 422, 507),
            body=RedriveSpec,
            access="schedule",
        ),
    )


def line_routes(lines: LinesApi) -> tuple[Route, ...]:
    """Keys."""
    return (
        Route(
            "GET",
            KEY,
            lines.look,
            "look_at_key",
            "Who is next in a key, and how many wait",
            (Answer(200, "the key as it is now", (LineView,)),),
            (422,),
            access="read",
        ),
        Route(
            "DELETE",
            KEY + "/head",
            lines.drop_head,
            "drop_head",
            "Cancel the event that the others of a key wait for",
            (Answer(200, "it is cancelled, and the key goes on", (EventView,), headers=("etag",)),),
            (404, 409, 412, 422, 507),
            conditional=True,
            access="schedule",
        ),
    )


def forecast_routes(forecast: ForecastApi) -> tuple[Route, ...]:
    """What is to come."""
    answers = (Answer(200, "the number of events due in each span of time", (ForecastView,)),)
    summary = "How many events are due, per minute or hour, ahead"
    return (
        Route(
            "GET",
            "/v1/forecast",
            forecast.all,
            "forecast",
            summary,
            answers,
            (422,),
            query=ForecastQuery,
            access="read",
        ),
        Route(
            "GET",
            TENANT + "/forecast",
            forecast.of_tenant,
            "forecast_tenant",
            summary + ", of one tenant",
            answers,
            (422,),
            query=ForecastQuery,
            access="read",
        ),
    )
