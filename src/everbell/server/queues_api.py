"""Queues over HTTP, for workers: lease, acknowledge, extend, fail.

A worker that waits may be gone before an event comes. So a long wait is cut into short ones, between which that is
noticed, and what was leased for nobody is given back at once instead of when its lease runs out.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.channels.queue import LEASE_EVENTS_MAX, WAIT_MS_MAX, Lease
from everbell.core.retry import Outcome
from everbell.core.time import DAY_MS, Duration, format_duration, parse_duration
from everbell.engine.port import LeasesPort
from everbell.errors import InvalidInput
from everbell.server.bodies import Body
from everbell.server.edge import check_queue_name
from everbell.server.message import Request, Response
from everbell.server.views import LeaseView, json_response, lease_view

LEASE_MS_MAX = DAY_MS
REASON_LENGTH_MAX = 500

_WAIT_STEP_MS = 2_000

Token = Annotated[str, Meta(min_length=1, max_length=128)]
Tokens = Annotated[list[Token], Meta(min_length=1, max_length=LEASE_EVENTS_MAX)]


class LeaseSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker asks for. It may all be left out."""

    limit: Annotated[int, Meta(ge=1, le=LEASE_EVENTS_MAX, description="at most so many events")] = 1
    wait: Annotated[Duration, Meta(description="for the first event, up to 60s")] = 0
    lease: Annotated[Duration, Meta(description="how long to hold them, up to 1d")] | UnsetType = UNSET


class AckSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The leases whose events are done."""

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
    """How many leases this was done to, and those that were not held any more."""

    done: int
    lost: list[str]


class QueuesApi:
    """The handlers of `/queues/{queue}`."""

    def __init__(self, leases: LeasesPort) -> None:
        self._leases = leases
        self._leasing = Body(LeaseSpec)
        self._acks = Body(AckSpec)
        self._extensions = Body(ExtendSpec)
        self._failures = Body(FailSpec)

    async def lease(self, request: Request, tenant: str, queue: str) -> Response:
        """Due events, as soon as there are some."""
        check_queue_name(queue)
        spec = self._leasing.read(request) if request.body else LeaseSpec()
        wait_ms = _bounded(spec.wait, "wait", WAIT_MS_MAX)
        lease_ms = None if spec.lease is UNSET else _bounded(spec.lease, "lease", LEASE_MS_MAX, 1)
        leases = await self._wait(request, tenant, queue, spec.limit, wait_ms, lease_ms)
        if leases and request.abandoned:
            await self._leases.give_back(tenant, queue, [lease.token for lease in leases])
            leases = []
        return json_response(LeasesView([lease_view(lease) for lease in leases]))

    async def acknowledge(self, request: Request, tenant: str, queue: str) -> Response:
        """The events are done; durable when answered."""
        check_queue_name(queue)
        tokens = list(dict.fromkeys(self._acks.read(request).leases))
        return _settled(tokens, await self._leases.acknowledge(tenant, queue, tokens))

    async def give_back(self, request: Request, tenant: str, queue: str) -> Response:
        """The events were not attempted: others may have them at once."""
        check_queue_name(queue)
        tokens = list(dict.fromkeys(self._acks.read(request).leases))
        return _settled(tokens, await self._leases.give_back(tenant, queue, tokens))

    async def extend(self, request: Request, tenant: str, queue: str) -> Response:
        """Hold the events longer."""
        check_queue_name(queue)
        spec = self._extensions.read(request)
        tokens = list(dict.fromkeys(spec.leases))
        lease_ms = _bounded(spec.lease, "lease", LEASE_MS_MAX, 1)
        return _settled(tokens, await self._leases.extend(tenant, queue, tokens, lease_ms))

    async def fail(self, request: Request, tenant: str, queue: str) -> Response:
        """The attempts failed: the events are tried again, or are dead, by their policy."""
        check_queue_name(queue)
        failures = {
            failure.lease: _outcome(failure, f"leases[{index}].retry_after")
            for index, failure in enumerate(self._failures.read(request).leases)
        }
        return _settled(list(failures), await self._leases.fail(tenant, queue, failures))

    async def _wait(
        self, request: Request, tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None
    ) -> list[Lease]:
        while True:
            step_ms = min(wait_ms, _WAIT_STEP_MS)
            leases = await self._leases.lease(tenant, queue, limit, step_ms, lease_ms)
            wait_ms -= step_ms
            if leases or wait_ms <= 0 or request.abandoned:
                return leases


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


def _settled(tokens: list[str], lost: list[str]) -> Response:
    return json_response(SettledView(len(tokens) - len(lost), lost))
