"""Queues over HTTP: their state for people; lease, acknowledge, extend and fail for workers.

A worker may tell its name in a header. An older server ignores the header, where it would refuse an unknown field.

A worker may disconnect while it waits for an event. So a long wait is cut into short ones, between which the handler
notices the disconnect. Events leased for a worker that is gone are released at once, before their lease runs out.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.views import LeaseView, json_response, lease_view
from everbell.channels.queue import LEASE_EVENTS_MAX, WAIT_MS_MAX, Lease
from everbell.core.queue_view import QueuesView, WorkerInfo
from everbell.core.request import Ask
from everbell.core.retry import Outcome
from everbell.core.time import DAY_MS, Duration, format_duration, parse_duration
from everbell.edge.bodies import Body
from everbell.edge.drafting import check_queue_name
from everbell.engine.requests import Acknowledge, ExtendLeases, FailLeases, GiveBack, LeaseEvents
from everbell.engine.view_requests import GetQueues, NoteWorker
from everbell.errors import InvalidInput
from everbell.http.message import HttpRequest, HttpResponse

QUEUES = TENANT + "/queues"
QUEUE = QUEUES + "/{queue}"
LEASE_MS_MAX = DAY_MS
REASON_LENGTH_MAX = 500

_WAIT_STEP_MS = 2_000

WORKER_HEADER = "everbell-worker"
# A worker is noted at most once in this time, because a busy one calls very often.
_NOTE_S = 1.0
_NOTED_MAX = 10_000

Token = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[list[Token], Meta(min_length=1, max_length=LEASE_EVENTS_MAX)]


class LeaseSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's request. Every field is optional."""

    limit: Annotated[int, Meta(ge=1, le=LEASE_EVENTS_MAX, description="the maximum number of events")] = 1
    wait: Annotated[Duration, Meta(description="how long to wait for the first event, up to 60s")] = 0
    lease: Annotated[Duration, Meta(description="how long to hold them, up to 1d")] | UnsetType = UNSET


class AckSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The leases of events that are done."""

    leases: Tokens


class ExtendSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The leases to hold longer, and how long from now."""

    leases: Tokens
    lease: Annotated[Duration, Meta(description="from now, up to 1d")]


class FailureSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """An attempt that failed."""

    lease: Token
    reason: Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None = None
    retry_after: Annotated[Duration, Meta(description="not before this time has passed")] | None = None
    permanent: Annotated[bool, Meta(description="do not try again: the event is dead")] = False


class FailSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The attempts that failed."""

    leases: Annotated[list[FailureSpec], Meta(min_length=1, max_length=LEASE_EVENTS_MAX)]


class LeasesView(Struct, frozen=True):
    """The events that the worker holds from now on; none when none were due."""

    events: list[LeaseView]


class SettledView(Struct, frozen=True):
    """How many leases were settled or extended, and which ones were not held any more."""

    done: int
    lost: list[str]


_EXAMPLE = {"leases": ["4k7.1.w9f3"]}


def _settling(verb: str, summary: str, body: type, example: object, *, no_command: str = "") -> Route:
    """The route of an operation on leases that a worker holds."""
    return Route(
        "POST",
        f"{QUEUE}/{verb}",
        summary,
        (ResponseKind(200, "done for every lease that was still held", SettledView),),
        access="work",
        body=body,
        example=example,
        routine=True,
        no_command=no_command,
    )


class QueuesApi(Resource, tag="queues"):
    """Queues, and the calls of workers."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._noted: dict[tuple[str, str, str], float] = {}
        self._workers = Body(WorkerInfo)
        self._leasing = Body(LeaseSpec)
        self._acks = Body(AckSpec)
        self._extensions = Body(ExtendSpec)
        self._failures = Body(FailSpec)

    @Route(
        "GET",
        QUEUES,
        "List the queues of a tenant and their workers",
        (ResponseKind(200, "the queues as they are now", QueuesView),),
        access="read",
        shared=True,
    )
    async def list_queues(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """All nodes are asked. Queues appear when an event is due soon, or when a worker calls for them."""
        return json_response(await self._ask(GetQueues(tenant)))

    @Route(
        "POST",
        QUEUE + "/lease",
        "Lease due events from a queue",
        (ResponseKind(200, "the events are held for the worker", LeasesView),),
        access="work",
        body=LeaseSpec,
        example={"limit": 10, "wait": "5s", "lease": "1m"},
        body_required=False,
        routine=True,
    )
    async def lease_events(self, request: HttpRequest, tenant: str, queue: str) -> HttpResponse:
        """The answer comes as soon as an event is due, and at the latest after `wait`.

        A worker may tell its name, host, version and queues, as JSON in the header `Everbell-Worker`.
        """
        check_queue_name(queue)
        spec = self._leasing.read(request) if request.body else LeaseSpec()
        wait_ms = _bounded(spec.wait, "wait", WAIT_MS_MAX)
        lease_ms = None if spec.lease is UNSET else _bounded(spec.lease, "lease", LEASE_MS_MAX, 1)
        await self._note_worker(request, tenant, queue)
        leases = await self._wait(request, tenant, queue, spec.limit, wait_ms, lease_ms)
        if leases and request.abandoned:
            await self._ask(GiveBack(tenant, queue, [lease.token for lease in leases]))
            leases = []
        return json_response(LeasesView([lease_view(lease) for lease in leases]))

    @_settling("ack", "Acknowledge events", AckSpec, _EXAMPLE)
    async def acknowledge_events(self, request: HttpRequest, tenant: str, queue: str) -> HttpResponse:
        """The events are recorded as delivered, durably, before the answer."""
        check_queue_name(queue)
        tokens = _distinct(self._acks.read(request).leases)
        return _settled(tokens, await self._ask(Acknowledge(tenant, queue, tokens)))

    @_settling(
        "release",
        "Release events that were not attempted",
        AckSpec,
        _EXAMPLE,
        no_command="everbell worker attempts every event that it leases",
    )
    async def release_events(self, request: HttpRequest, tenant: str, queue: str) -> HttpResponse:
        """Other workers may lease them at once."""
        check_queue_name(queue)
        tokens = _distinct(self._acks.read(request).leases)
        return _settled(tokens, await self._ask(GiveBack(tenant, queue, tokens)))

    @_settling("extend", "Extend leases", ExtendSpec, {**_EXAMPLE, "lease": "1m"})
    async def extend_leases(self, request: HttpRequest, tenant: str, queue: str) -> HttpResponse:
        """The worker holds the events longer."""
        check_queue_name(queue)
        spec = self._extensions.read(request)
        tokens = _distinct(spec.leases)
        lease_ms = _bounded(spec.lease, "lease", LEASE_MS_MAX, 1)
        await self._note_worker(request, tenant, queue)
        return _settled(tokens, await self._ask(ExtendLeases(tenant, queue, tokens, lease_ms)))

    @_settling(
        "fail",
        "Report failed attempts",
        FailSpec,
        {"leases": [{"lease": "4k7.1.w9f3", "reason": "card declined", "retry_after": "5m"}]},
    )
    async def fail_events(self, request: HttpRequest, tenant: str, queue: str) -> HttpResponse:
        """Each event is retried, or is dead, as its retry policy says."""
        check_queue_name(queue)
        failures = {
            failure.lease: _outcome(failure, f"leases[{index}].retry_after")
            for index, failure in enumerate(self._failures.read(request).leases)
        }
        return _settled(list(failures), await self._ask(FailLeases(tenant, queue, failures)))

    async def _note_worker(self, request: HttpRequest, tenant: str, queue: str) -> None:
        """Tell the engine which worker calls, if the worker says so."""
        text = request.headers.get(WORKER_HEADER)
        if text is None:
            return
        place, now_s = (tenant, queue, text), asyncio.get_running_loop().time()
        if now_s - self._noted.get(place, -_NOTE_S) < _NOTE_S:
            return
        try:
            worker = self._workers.parse(text.encode())
        except InvalidInput as wrong:
            raise InvalidInput(wrong.reason, WORKER_HEADER) from None
        if len(self._noted) >= _NOTED_MAX:
            self._noted.clear()
        self._noted[place] = now_s
        await self._ask(NoteWorker(tenant, queue, worker))

    async def _wait(
        self, request: HttpRequest, tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None
    ) -> list[Lease]:
        while True:
            step_ms = min(wait_ms, _WAIT_STEP_MS)
            leases = await self._ask(LeaseEvents(tenant, queue, limit, step_ms, lease_ms))
            wait_ms -= step_ms
            if leases or wait_ms <= 0 or request.abandoned:
                return leases


def _distinct(tokens: Tokens) -> list[str]:
    return list(dict.fromkeys(tokens))


def _bounded(value: Duration, field: str, longest_ms: int, shortest_ms: int = 0) -> int:
    try:
        duration_ms = parse_duration(value, field)
    except OverflowError:
        duration_ms = longest_ms + 1
    if duration_ms > longest_ms:
        raise InvalidInput(f"must not be longer than {format_duration(longest_ms)}", field)
    if duration_ms < shortest_ms:
        raise InvalidInput("must be longer than nothing", field)
    return duration_ms


def _outcome(failure: FailureSpec, field: str) -> Outcome:
    retry_after = failure.retry_after
    return Outcome(
        "refused" if failure.permanent else "failed",
        failure.reason,
        retry_after_ms=None if retry_after is None else _bounded(retry_after, field, 365 * DAY_MS),
    )


def _settled(tokens: list[str], lost: list[str]) -> HttpResponse:
    return json_response(SettledView(len(tokens) - len(lost), lost))
