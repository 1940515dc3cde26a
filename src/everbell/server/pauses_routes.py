"""The routes of what is paused."""

from __future__ import annotations

from everbell.core.pause import PauseSpec
from everbell.server.pauses_api import PausedThing, PausesApi, PausesView, ResumeQuery
from everbell.server.route import Answer, Route
from everbell.server.routes import TENANT

PAUSES = f"{TENANT}/pauses"


def pause_routes(pauses: PausesApi) -> tuple[Route, ...]:
    """What is to wait, and what may go on."""
    return (
        Route(
            "GET",
            PAUSES,
            pauses.list,
            "list_pauses",
            "See what of a tenant is paused",
            (Answer(200, "since when, by whom, why and until when", (PausesView,)),),
            (422,),
            access="read",
        ),
        Route(
            "POST",
            PAUSES,
            pauses.pause,
            "pause",
            "Pause a tenant, a key, a target or a queue: events are taken in, and wait",
            (
                Answer(201, "nothing of it starts any more; what is under way may end", (PausedThing,)),
                Answer(200, "it was paused already, and has this note and end now", (PausedThing,)),
            ),
            (409, 413, 415, 422),
            body=PauseSpec,
            access="admin",
        ),
        Route(
            "DELETE",
            PAUSES,
            pauses.resume,
            "resume",
            "Resume what is paused: what is overdue goes out, the oldest first",
            (Answer(200, "the pause that is over", (PausedThing,)),),
            (404, 422),
            query=ResumeQuery,
            access="admin",
        ),
    )
