"""Forecasts over HTTP: how many events are due in each coming minute or hour, and how many are overdue."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.timestamps import Instant, instant
from everbell.api.views import json_response
from everbell.clock import Clock
from everbell.core.request import Ask
from everbell.core.time import HOUR_MS, MINUTE_MS, format_duration
from everbell.edge.bodies import read_query
from everbell.engine.forecast import Forecast
from everbell.engine.requests import GetForecast
from everbell.http.message import HttpRequest, HttpResponse

Per = Literal["minute", "hour"]

_PER_MS: dict[Per, int] = {"minute": MINUTE_MS, "hour": HOUR_MS}


class ForecastQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How far to look ahead, and how finely."""

    per: Per = "minute"
    count: Annotated[int, Meta(ge=1, le=1_440, description="how many minutes or hours, this one included")] = 60


class SpanView(Struct, frozen=True, gc=False):
    """A minute or an hour."""

    at: Annotated[Instant, Meta(description="its beginning")]
    due: int


class ForecastView(Struct, frozen=True, omit_defaults=True):
    """How many events are due. Events that repeat count with every occurrence, retries with their next attempt."""

    from_: Instant = field(name="from")
    per: Per
    spans: list[SpanView]
    overdue: Annotated[int, Meta(description="due, and not delivered yet")]
    oldest_overdue: Annotated[str, Meta(description="for how long the oldest of them has been due")] | None = None
    known_until: (
        Annotated[Instant, Meta(description="from here on there may be more: that was too much to count")] | None
    ) = None


_ANSWER = ResponseKind(200, "the number of events due in each span of time", ForecastView)


class ForecastApi(Resource, tag="forecast"):
    """How many events are due, per minute or hour."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock

    @Route(
        "GET",
        "/v1/forecast",
        "Forecast the load of all tenants",
        (_ANSWER,),
        access="read",
        shared=True,
        query=ForecastQuery,
    )
    async def forecast(self, request: HttpRequest) -> HttpResponse:
        """Recurring events count once per occurrence, retries with their next attempt."""
        return await self._forecast(request, None)

    @Route(
        "GET",
        TENANT + "/forecast",
        "Forecast the load of one tenant",
        (_ANSWER,),
        access="read",
        shared=True,
        query=ForecastQuery,
    )
    async def forecast_tenant(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Recurring events count once per occurrence, retries with their next attempt."""
        return await self._forecast(request, tenant)

    async def _forecast(self, request: HttpRequest, tenant: str | None) -> HttpResponse:
        query = read_query(request, ForecastQuery)
        forecast = await self._ask(GetForecast(tenant, _PER_MS[query.per], query.count))
        return json_response(_view(forecast, query.per, self._clock.now()))


def _view(forecast: Forecast, per: Per, now: int) -> ForecastView:
    oldest_at, known_until_at = forecast.oldest_at, forecast.known_until_at
    return ForecastView(
        instant(forecast.from_at),
        per,
        [SpanView(instant(forecast.from_at + i * forecast.per_ms), due) for i, due in enumerate(forecast.due)],
        forecast.overdue,
        None if oldest_at is None else format_duration(max(now - oldest_at, 0)),
        None if known_until_at is None else instant(known_until_at),
    )
