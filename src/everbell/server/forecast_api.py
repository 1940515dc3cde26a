"""How many events are due, per minute or hour, ahead, and how far behind the present is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from everbell.clock import Clock
from everbell.core.time import HOUR_MS, MINUTE_MS, format_duration
from everbell.engine.forecast import Forecast
from everbell.engine.port import OperationsPort
from everbell.server.bodies import read_query
from everbell.server.message import Request, Response
from everbell.server.moments import Instant, instant
from everbell.server.views import json_response

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
    """What is to come. Events that repeat count with every occurrence, retries with their next attempt."""

    from_: Instant = field(name="from")
    per: Per
    spans: list[SpanView]
    overdue: Annotated[int, Meta(description="due, and not delivered yet")]
    oldest_overdue: Annotated[str, Meta(description="for how long the oldest of them has been due")] | None = None
    known_until: (
        Annotated[Instant, Meta(description="from here on there may be more: that was too much to count")] | None
    ) = None


class ForecastApi:
    """The handlers of `/forecast`, of all tenants and of one."""

    def __init__(self, operations: OperationsPort, clock: Clock) -> None:
        self._operations = operations
        self._clock = clock

    async def all(self, request: Request) -> Response:
        """Of all tenants."""
        return await self._forecast(request, None)

    async def of_tenant(self, request: Request, tenant: str) -> Response:
        """Of one tenant."""
        return await self._forecast(request, tenant)

    async def _forecast(self, request: Request, tenant: str | None) -> Response:
        query = read_query(request, ForecastQuery)
        forecast = await self._operations.forecast(tenant, _PER_MS[query.per], query.count)
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
