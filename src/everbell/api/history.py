"""The recent past over HTTP: charts for people without a monitoring system."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.timestamps import instant
from everbell.api.views import json_response
from everbell.core.history_view import HistoryView, SampleView, StandingView
from everbell.core.request import Ask
from everbell.edge.bodies import read_query
from everbell.engine.history import Gauges, Past, PastSpan, Sample
from everbell.engine.tally import (
    CANCELLED,
    DEAD,
    DELIVERED,
    EXPIRED,
    FAILED,
    RETRIED,
    SCHEDULED,
    lateness_in,
    percentile,
)
from everbell.engine.view_requests import GetPast
from everbell.http.message import HttpRequest, HttpResponse


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How far to look back."""

    span: Annotated[PastSpan, Meta(description="15 minutes in steps of 10 s, or 24 hours in steps of 5 minutes")] = (
        "minutes"
    )


_NO_COMMAND = "it is for charts; everbell top shows the present"
_ANSWER = ResponseKind(200, "the last spans of time, the oldest first", HistoryView)


class HistoryApi(Resource, tag="history"):
    """What happened in the last minutes and hours."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @Route(
        "GET",
        "/v1/history",
        "Read the recent past of all tenants",
        (_ANSWER,),
        access="read",
        shared=True,
        query=HistoryQuery,
        no_command=_NO_COMMAND,
    )
    async def history(self, request: HttpRequest) -> HttpResponse:
        """The nodes keep it in memory, so it begins when they started."""
        return await self._history(request, None)

    @Route(
        "GET",
        TENANT + "/history",
        "Read the recent past of one tenant",
        (_ANSWER,),
        access="read",
        shared=True,
        query=HistoryQuery,
        no_command=_NO_COMMAND,
    )
    async def history_of_tenant(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """The nodes keep it in memory, so it begins when they started. Only the first 64 tenants have a history."""
        return await self._history(request, tenant)

    async def _history(self, request: HttpRequest, tenant: str | None) -> HttpResponse:
        past = await self._ask(GetPast(tenant, read_query(request, HistoryQuery).span))
        return json_response(_view(past))


def _view(past: Past) -> HistoryView:
    return HistoryView(past.step_ms, tuple(map(_sample_view, past.samples)), _standing(past.now), past.unheard)


def _sample_view(sample: Sample) -> SampleView:
    counts, end = sample.counts, sample.end
    late = lateness_in(counts)
    return SampleView(
        end.waiting,
        end.in_flight,
        end.oldest_ms,
        end.pending + end.held_pending,
        end.dead + end.held_dead,
        at=instant(sample.at),
        scheduled=counts[SCHEDULED],
        started=sum(late),
        delivered=counts[DELIVERED],
        failed=counts[FAILED],
        retried=counts[RETRIED],
        dead=counts[DEAD],
        expired=counts[EXPIRED],
        cancelled=counts[CANCELLED],
        late_p50_ms=percentile(late, 0.5),
        late_p99_ms=percentile(late, 0.99),
    )


def _standing(gauges: Gauges) -> StandingView:
    pending, dead = gauges.pending + gauges.held_pending, gauges.dead + gauges.held_dead
    return StandingView(gauges.waiting, gauges.in_flight, gauges.oldest_ms, pending, dead)
