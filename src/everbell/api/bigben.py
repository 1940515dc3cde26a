"""The API of BigBen, a scheduler with tenants, HTTP and Kafka: events, tenants, crons.

A tenant of BigBen is a tenant here (`core.bigben` has the names). Registering it writes its policy, so it is in the log
of the cluster like every other policy, and its fields can be changed like those of every other tenant. The
translation of requests is in `facades`, for the records of a Kafka topic have the same form.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from everbell.api.bigben_tenants import RegisteredTenants, TenantConfig
from everbell.api.facade import Facade, FacadePorts
from everbell.api.route import ResponseKind, Route
from everbell.api.views import json_response
from everbell.core.bigben import EventError, EventResponse, bigben_tenant, event_time, native_tenant, payload_of
from everbell.core.event import Record
from everbell.core.time import MINUTE_MS, parse_duration
from everbell.edge.bodies import Body, read_query
from everbell.edge.drafting import check_id, trace_of
from everbell.engine.requests import Cancel, Get, LookAtCluster, Replace, Schedule, TryOut
from everbell.engine.seen import Seen
from everbell.errors import Conflict, EverbellError, InvalidInput, NotFound
from everbell.facades.bigben_cron import CRON_TYPES, CronDescription, CronSpec, cron_event, cron_id, cron_view
from everbell.facades.bigben_request import PAYLOAD_ONLY_TAG, EventRequest, in_full, plan, until_registered
from everbell.facades.bigben_scheduling import schedule
from everbell.http.message import HttpRequest, HttpResponse

_GENERATED_AT_ONCE = 1_000
_GENERATED_MAX = 1_000_000

_STATUSES = {"delivered": "PROCESSED", "dead": "ERROR", "expired": "ERROR", "delivering": "TRIGGERED"}
"""BigBen's words, where it is not UN_PROCESSED."""


class OkView(Struct, frozen=True):
    """The answer where there is nothing to tell."""

    status: Literal["OK"] = "OK"


class EventQuery(Struct, frozen=True):
    """The event that is meant."""

    id: str = ""
    tenant: str = ""


class CronQuery(Struct, frozen=True):
    """Whether to show the next times."""

    describe: str = "false"


class Generation(Struct, frozen=True, rename="camel"):
    """How many events to make, and when they are due."""

    offset: str
    period: str
    num_events: Annotated[int, Meta(ge=0, le=_GENERATED_MAX)]
    tenant: str


_OK = ResponseKind(200, "done", OkView)
_BAD = ResponseKind(400, "the request is wrong; `message` says why", dict[str, str])
_MISSING = ResponseKind(404, "there is no such event", dict[str, str])
_EVENTS = list[EventResponse]
_EXAMPLE = {"id": "order-17", "eventTime": "2026-11-20T10:00:00Z", "tenant": "shop/orders", "payload": "timed out"}
_GENERATION_EXAMPLE = {"offset": "PT1M", "period": "PT1H", "numEvents": 100, "tenant": "shop/orders"}
_CRON_EXAMPLE = {"id": "nightly", "expression": "0 0 2 * * ?", "type": "QUARTZ", "tenant": "shop/orders"}
_TENANT_EXAMPLE = {"tenant": "shop/orders", "type": "HTTP", "props": {"url": "https://shop.example/timeouts"}}


class BigBenApi(Facade, tag="bigben"):
    """Events, tenants and crons, as clients of BigBen ask for them (`--facade bigben`)."""

    product = "bigben"
    takes_tenant = False

    def __init__(self, ports: FacadePorts, tenant: str | None) -> None:
        super().__init__(ports, tenant)
        self._tenants = RegisteredTenants(ports)
        self._requests = Body(list[EventRequest])
        self._configs = Body(TenantConfig)
        self._generations = Body(Generation)
        self._crons = Body(CronSpec)

    @Route("GET", "/ping", "Liveness probe", (_OK,), access="open")
    async def ping_bigben(self, request: HttpRequest) -> HttpResponse:
        """The answer is `{"status": "OK"}`."""
        return json_response(OkView())

    @Route(
        "POST",
        "/events/schedule",
        "Schedule, move or remove events",
        (
            ResponseKind(200, "all were accepted", _EVENTS),
            ResponseKind(206, "some were rejected, or failed", _EVENTS),
            ResponseKind(400, "all were rejected", _EVENTS),
        ),
        access="schedule",
        problems=(429, 507),
        body=list[EventRequest],
        example=[_EXAMPLE],
        routine=True,
    )
    async def schedule_events(self, request: HttpRequest) -> HttpResponse:
        """Each request is accepted or rejected by itself; its answer has `eventStatus` and `error`."""
        answers = await schedule(self._requests.parse(request.body), self.ask, self.edge)
        bad = sum(answer.event_status in ("REJECTED", "ERROR") for answer in answers)
        rejected = sum(answer.event_status == "REJECTED" for answer in answers)
        return json_response(answers, 400 if answers and rejected == len(answers) else 206 if bad else 200)

    @Route(
        "GET",
        "/events/find",
        "Find an event",
        (ResponseKind(200, "the event as it is now", EventResponse), _BAD, _MISSING),
        access="read",
        query=EventQuery,
    )
    async def find_event(self, request: HttpRequest) -> HttpResponse:
        """The payload is kept until the event ends."""
        return json_response(self._view(await self._found(request)))

    @Route(
        "POST",
        "/events/dryrun",
        "Fire an event now, without a change of it",
        (ResponseKind(200, "the event, and whether its receiver took it", EventResponse), _BAD, _MISSING),
        access="schedule",
        query=EventQuery,
    )
    async def try_event(self, request: HttpRequest) -> HttpResponse:
        """One attempt is made. The event still fires at its time."""
        seen = await self._found(request)
        outcome = await self.ask(TryOut(seen.event.tenant, seen.event.id))
        error = None if outcome.result == "delivered" else EventError(outcome.code or 500, outcome.reason or "failed")
        view = self._view(seen)
        if not self.ports.may_read(request, seen.event.tenant):
            view = replace(view, payload=None)
        fired = replace(view, event_status="TRIGGERED", triggered_at=event_time(self.edge.now()))
        return json_response(replace(fired, error=error))

    @Route(
        "POST",
        "/events/tenant/register",
        "Register a tenant, or change it",
        (ResponseKind(200, "all tenants", dict[str, TenantConfig]), _BAD),
        access="operator",
        body=TenantConfig,
        example=_TENANT_EXAMPLE,
    )
    async def register_tenant(self, request: HttpRequest) -> HttpResponse:
        """Its policy is written. A custom class is refused: no code of others runs here."""
        config = self._configs.parse(request.body)
        request.subject = config.tenant or ""
        await self._tenants.register(config)
        return json_response(self._tenants.all())

    @Route(
        "GET",
        "/events/tenants",
        "List tenants",
        (ResponseKind(200, "all tenants", dict[str, TenantConfig]),),
        access="read",
    )
    async def list_registered(self, request: HttpRequest) -> HttpResponse:
        """All that are registered, by name."""
        return json_response(self._tenants.all())

    @Route("GET", "/events/cluster", "List nodes", (ResponseKind(200, "by address", dict[str, str]),), access="read")
    async def list_nodes(self, request: HttpRequest) -> HttpResponse:
        """All nodes are equal here. The first one is called the master, for programs that look for one."""
        members = (await self.ask(LookAtCluster())).members
        names = sorted(member.name for member in members)
        return json_response({name: "Slave" if index else "Master" for index, name in enumerate(names)})

    @Route(
        "POST",
        "/generation/random",
        "Schedule events at random times",
        (ResponseKind(200, "how many are due in each minute", dict[str, int]), _BAD),
        access="schedule",
        problems=(429, 507),
        body=Generation,
        example=_GENERATION_EXAMPLE,
    )
    async def generate_events(self, request: HttpRequest) -> HttpResponse:
        """They are due in a period that begins after an offset from the current minute."""
        spec = self._generations.parse(request.body)
        await until_registered(spec.tenant, self.edge)
        offset_ms, period_ms = parse_duration(spec.offset, "offset"), parse_duration(spec.period, "period")
        now = self.edge.now()
        start_at = now - now % MINUTE_MS + offset_ms
        minutes: dict[int, int] = {}
        for start in range(0, spec.num_events, _GENERATED_AT_ONCE):
            count = min(_GENERATED_AT_ONCE, spec.num_events - start)
            times = [start_at + int(self.ports.entropy.jitter() * period_ms) for _ in range(count)]
            await self._generate(spec.tenant, times, now)
            for at in times:
                minutes[at - at % MINUTE_MS] = minutes.get(at - at % MINUTE_MS, 0) + 1
        return json_response({event_time(minute): minutes[minute] for minute in sorted(minutes)})

    @Route(
        "POST",
        "/cron",
        "Set a cron",
        (_OK, _BAD),
        access="schedule",
        body=CronSpec,
        example=_CRON_EXAMPLE,
        problems=(409,),
    )
    async def set_cron(self, request: HttpRequest) -> HttpResponse:
        """A cron of the same tenant, id and type is replaced."""
        cron = self._crons.parse(request.body)
        await until_registered(cron.tenant, self.edge)
        tenant = native_tenant(cron.tenant)
        if not self.edge.is_registered(tenant):
            raise InvalidInput("tenant not registered / unknown tenant")
        spec = cron_event(cron)
        assert spec.id is not None
        await self.ask(Replace(tenant, spec.id, in_full(self.edge.draft(spec, tenant, trace_of(request))), None))
        return json_response(OkView())

    @Route(
        "GET",
        "/cron/{cron_tenant}/{cron}",
        "Read crons",
        (ResponseKind(200, "those of this id", list[CronDescription]), _BAD),
        access="read",
        query=CronQuery,
    )
    async def get_crons(self, request: HttpRequest, tenant: str, name: str) -> HttpResponse:
        """With `describe=true`, each comes with its next times."""
        describe = read_query(request, CronQuery).describe.lower() == "true"
        native, found = native_tenant(tenant), []
        for cron_type in CRON_TYPES:
            try:
                seen = await self.ask(Get(native, check_id(cron_id(cron_type, name))))
            except NotFound:
                continue
            if seen.live is not None:
                found.append(cron_view(seen.live, cron_type, describe=describe))
        return json_response(found)

    @Route(
        "DELETE",
        "/cron/{cron_tenant}/{cron}/{cron_type}",
        "Delete a cron of one type, or of all (*)",
        (_OK, _BAD),
        access="schedule",
    )
    async def delete_crons(self, request: HttpRequest, tenant: str, name: str, type_name: str) -> HttpResponse:
        """The answer is the same if there is none."""
        types = [known for known in CRON_TYPES if type_name in ("*", known)]
        if not types:
            raise InvalidInput(f"there is no type {type_name[:64]!r}; there are {', '.join(CRON_TYPES)} and *")
        for cron_type in types:
            try:
                await self.ask(Cancel(native_tenant(tenant), check_id(cron_id(cron_type, name))))
            except (NotFound, Conflict):
                continue
        return json_response(OkView())

    def refusal(self, error: EverbellError) -> HttpResponse:
        """BigBen has a message for each error, and 400 for everything that is wrong with a request."""
        if isinstance(error, NotFound):
            return json_response({"status": "not found"}, 404)
        status = 400 if isinstance(error, InvalidInput) else error.status
        answer = json_response({"message": str(error)}, status)
        retry_after_s = error.retry_after_s
        return answer if retry_after_s is None else replace(answer, headers=(("retry-after", str(retry_after_s)),))

    async def _found(self, request: HttpRequest) -> Seen:
        """The event that a query names. Raises `NotFound`."""
        query = read_query(request, EventQuery)
        if not query.id.strip():
            raise InvalidInput("null id")
        seen = await self.ask(Get(native_tenant(query.tenant), check_id(query.id)))
        if seen.status == "cancelled" or seen.event.key != query.id:
            raise NotFound(f"there is no event {query.id!r}")
        return seen

    def _view(self, seen: Seen) -> EventResponse:
        event = seen.event
        hidden = isinstance(event, Record) or self.edge.hides_payloads(event.tenant)
        last = event.attempts[-1] if event.attempts else None
        failed = last is not None and last.result != "delivered" and last.reason is not None
        return EventResponse(
            id=event.key,
            event_time=event_time(event.due_at),
            tenant=bigben_tenant(event.tenant),
            payload=None if hidden or isinstance(event, Record) else payload_of(event),
            delivery_option="PAYLOAD_ONLY" if PAYLOAD_ONLY_TAG in event.tags else "FULL_EVENT",
            event_id=event.id,
            triggered_at=None if last is None else event_time(last.started_at),
            event_status=_STATUSES.get(seen.status, "TRIGGERED" if event.attempt_count else "UN_PROCESSED"),
            error=EventError(last.code or 500, last.reason or "") if last is not None and failed else None,
        )

    async def _generate(self, tenant: str, times: list[int], now: int) -> None:
        """Schedule one event for each time. Raises the first error."""
        nonces = self.ports.entropy.nonces(len(times))
        drafts, native = [], ""
        for index, at in enumerate(times):
            name = nonces[9 * index : 9 * index + 9].hex()
            planned = plan(EventRequest(name, event_time(at), tenant), self.edge, now)
            native = planned.tenant
            assert planned.item.draft is not None
            drafts.append(planned.item.draft)
        for result in await self.ask(Schedule(native, drafts)):
            if isinstance(result, EverbellError):
                raise result
