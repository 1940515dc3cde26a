"""The table of all routes: what the server answers to, and what its documentation says, are both made from it."""

from __future__ import annotations

from typing import Any

from everbell.core.health import Health
from everbell.core.spec import ChangeSpec, EventSpec
from everbell.server.events_api import DeliverQuery, EventsApi
from everbell.server.queues_api import AckSpec, ExtendSpec, FailSpec, LeaseSpec, LeasesView, QueuesApi, SettledView
from everbell.server.recurrence_api import (
    BackfillSpec,
    BackfillView,
    PreviewQuery,
    PreviewSpec,
    PreviewView,
    RecurrenceApi,
)
from everbell.server.route import HTML, Answer, Route
from everbell.server.system_api import METRICS_TYPE, BackupView, SystemApi
from everbell.server.views import AcceptedView, EventView, TrialView

TENANT = "/v1/tenants/{tenant}"
EVENTS = TENANT + "/events"
EVENT = EVENTS + "/{id}"
DEAD = TENANT + "/dead"
QUEUE = TENANT + "/queues/{queue}"

_SEEN = Answer(200, "the event as it is now", (EventView,), headers=("etag",))
_SETTLED = Answer(200, "done, as far as the leases were still held", (SettledView,))


def event_routes(events: EventsApi) -> tuple[Route, ...]:
    """One event."""
    placed = ("location", "etag")
    return (
        Route(
            "POST",
            EVENTS,
            events.schedule,
            "schedule_event",
            "Schedule an event",
            (
                Answer(201, "it is stored, and will ring", (AcceptedView,), headers=placed),
                Answer(200, "a request with this id came before, and made this", (AcceptedView,), headers=placed),
            ),
            (409, 413, 415, 422, 429, 507),
            body=EventSpec,
            once=True,
            access="schedule",
            routine=True,
        ),
        Route(
            "PUT",
            EVENT,
            events.put,
            "put_event",
            "Create an event, or put another in its place",
            (Answer(201, "it is stored, and will ring", (EventView,), headers=placed), _SEEN),
            (409, 412, 413, 415, 422, 429, 507),
            body=EventSpec,
            conditional=True,
            access="schedule",
            routine=True,
        ),
        Route("GET", EVENT, events.get, "get_event", "Look at an event", (_SEEN,), (404, 422), access="read"),
        Route(
            "PATCH",
            EVENT,
            events.change,
            "change_event",
            "Reschedule or change an event",
            (_SEEN,),
            (404, 409, 412, 413, 415, 422, 507),
            body=ChangeSpec,
            conditional=True,
            access="schedule",
        ),
        Route(
            "DELETE",
            EVENT,
            events.cancel,
            "cancel_event",
            "Cancel an event",
            (_SEEN,),
            (404, 409, 412, 422, 507),
            conditional=True,
            access="schedule",
        ),
        Route(
            "POST",
            EVENT + "/deliver",
            events.deliver,
            "deliver_event",
            "Ring an event now, or only try it",
            (Answer(200, "the event as it is now; with dry_run, the outcome of the trial", (EventView, TrialView)),),
            (404, 409, 422, 507),
            query=DeliverQuery,
            access="schedule",
        ),
    )


def recurrence_routes(recurrence: RecurrenceApi) -> tuple[Route, ...]:
    """Events that repeat."""
    shown = Answer(200, "the next times", (PreviewView,))
    return (
        Route(
            "POST",
            "/v1/preview",
            recurrence.preview,
            "preview",
            "When a recurrence would ring",
            (shown,),
            (413, 415, 422),
            body=PreviewSpec,
            access="any",
            routine=True,
        ),
        Route(
            "GET",
            EVENT + "/preview",
            recurrence.preview_event,
            "preview_event",
            "When an event will ring",
            (shown,),
            (404, 409, 422),
            query=PreviewQuery,
            access="read",
        ),
        Route(
            "POST",
            EVENT + "/backfill",
            recurrence.backfill,
            "backfill_event",
            "Ring for the times of a past range, once more or for the first time",
            (Answer(200, "they are scheduled, each as an event of its own", (BackfillView,)),),
            (404, 409, 413, 415, 422, 429, 507),
            body=BackfillSpec,
            access="schedule",
        ),
    )


def queue_routes(queues: QueuesApi) -> tuple[Route, ...]:
    """Workers."""
    problems = (413, 415, 422)
    return (
        Route(
            "POST",
            QUEUE + "/lease",
            queues.lease,
            "lease_events",
            "Take due events from a queue",
            (Answer(200, "the events are held for the worker", (LeasesView,)),),
            problems,
            body=LeaseSpec,
            body_required=False,
            access="work",
            routine=True,
        ),
        Route(
            "POST",
            QUEUE + "/ack",
            queues.acknowledge,
            "acknowledge_events",
            "Say that events are done",
            (_SETTLED,),
            problems,
            body=AckSpec,
            access="work",
            routine=True,
        ),
        Route(
            "POST",
            QUEUE + "/extend",
            queues.extend,
            "extend_leases",
            "Hold events longer",
            (_SETTLED,),
            problems,
            body=ExtendSpec,
            access="work",
            routine=True,
        ),
        Route(
            "POST",
            QUEUE + "/release",
            queues.give_back,
            "release_events",
            "Give events back that were not attempted",
            (_SETTLED,),
            problems,
            body=AckSpec,
            access="work",
            routine=True,
        ),
        Route(
            "POST",
            QUEUE + "/fail",
            queues.fail,
            "fail_events",
            "Say that attempts failed",
            (_SETTLED,),
            problems,
            body=FailSpec,
            access="work",
            routine=True,
        ),
    )


def system_routes(system: SystemApi) -> tuple[Route, ...]:
    """The server itself."""
    return (
        Route(
            "POST",
            "/v1/backups",
            system.backup,
            "back_up",
            "Copy the store while it is in use",
            (Answer(201, "a complete copy", (BackupView,)),),
            (409,),
            access="admin",
        ),
        Route(
            "GET",
            "/healthz",
            system.healthz,
            "healthz",
            "Whether the process is worth keeping",
            (Answer(200, "it is", (Health,)), Answer(503, "it is broken: restart it", (Health,))),
            access="open",
        ),
        Route(
            "GET",
            "/readyz",
            system.readyz,
            "readyz",
            "Whether requests are welcome",
            (Answer(200, "they are", (Health,)), Answer(503, "it says what is in the way", (Health,))),
            access="open",
        ),
        Route(
            "GET",
            "/metrics",
            system.metrics,
            "metrics",
            "Metrics for Prometheus",
            (Answer(200, "the metrics", content_type=METRICS_TYPE),),
            access="read",
        ),
        Route(
            "GET",
            "/openapi.json",
            system.openapi,
            "openapi",
            "This description",
            (Answer(200, "OpenAPI 3.1", (dict[str, Any],)),),
            access="open",
        ),
        Route(
            "GET",
            "/docs",
            system.docs,
            "docs",
            "This description for people",
            (Answer(200, "a page", content_type=HTML),),
            access="open",
        ),
        Route(
            "GET",
            "/",
            system.front,
            "front",
            "Where to begin",
            (Answer(200, "a page", content_type=HTML),),
            access="open",
        ),
    )
