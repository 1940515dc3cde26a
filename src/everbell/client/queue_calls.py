"""The calls of workers: lease due events of a queue, then acknowledge, extend or fail the leases.

Repeating `ack`, `extend` or `fail` is safe: a lease that the first call settled is reported as lost by the second.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import UNSET, Raw, Struct, UnsetType, to_builtins
from msgspec import json as msgspec_json

from everbell.channels.queue import Lease
from everbell.client.answers import Settled
from everbell.client.call import Call, decoded
from everbell.client.event_json import DurationLike, duration_text, encode_json
from everbell.client.operation import Calls, operation
from everbell.client.paths import queue_path
from everbell.core.occurrence import Occurrence
from everbell.core.queue_view import WorkerInfo
from everbell.core.time import parse_duration

LEASE_EVENTS = 100

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NULL = Raw(b"null")


class Failure(Struct, frozen=True, omit_defaults=True):
    """The reason why a leased event was not handled; `permanent` makes it dead without another attempt."""

    lease: str
    reason: str | None = None
    retry_after: str | float | None = None
    permanent: bool = False


class QueueCalls(Calls):
    """Operations of workers."""

    @operation
    def lease(
        self,
        queue: str,
        *,
        limit: int = LEASE_EVENTS,
        wait: DurationLike = 0,
        lease: DurationLike | None = None,
        worker: WorkerInfo | None = None,
    ) -> Call[list[Lease]]:
        """Up to `limit` due events of the queue, waiting up to `wait` for the first.

        They are held for `lease` (by default the duration in the tenant's policy). Then other workers may lease them,
        unless they were settled or extended. The server lists the `worker` among those of the queue.
        """
        body = {"limit": limit, "wait": _text(wait)}
        if lease is not None:
            body["lease"] = _text(lease)

        def parse(status: int, answer: bytes) -> list[Lease]:
            return [_lease(self.tenant, event) for event in _leases_decoder.decode(answer).events]

        path = f"{queue_path(self.tenant, queue)}/lease"
        wait_s = parse_duration(_text(wait), "wait") / 1_000
        return Call("POST", path, parse, encode_json(body), wait_s=wait_s, worker=_header(worker))

    @operation
    def ack(self, queue: str, leases: Sequence[str]) -> Call[Settled]:
        """The events are done."""
        return _settle(self.tenant, queue, "ack", {"leases": leases})

    @operation
    def extend(
        self, queue: str, leases: Sequence[str], *, lease: DurationLike, worker: WorkerInfo | None = None
    ) -> Call[Settled]:
        """Hold the events for `lease` from now."""
        return _settle(self.tenant, queue, "extend", {"leases": leases, "lease": _text(lease)}, worker)

    @operation
    def give_back(self, queue: str, leases: Sequence[str]) -> Call[Settled]:
        """The events were not attempted: other workers may lease them at once, and no attempt is counted."""
        return _settle(self.tenant, queue, "release", {"leases": leases})

    @operation
    def fail(self, queue: str, failures: Sequence[Failure]) -> Call[Settled]:
        """The events were not handled. Each is retried, or is dead, as its retry policy says."""
        return _settle(self.tenant, queue, "fail", {"leases": failures})


def _settle(
    tenant: str, queue: str, verb: str, body: Mapping[str, object], worker: WorkerInfo | None = None
) -> Call[Settled]:
    path = f"{queue_path(tenant, queue)}/{verb}"
    return Call("POST", path, _settled, encode_json(body), repeatable=True, worker=_header(worker))


def _header(worker: WorkerInfo | None) -> str | None:
    """A header is ASCII, so other characters are escaped."""
    return None if worker is None else json.dumps(to_builtins(worker))


def _text(duration: DurationLike) -> str | int | float:
    return duration_text(duration) if isinstance(duration, timedelta) else duration


class _Leased(Struct, frozen=True, kw_only=True):
    lease: str
    until: datetime
    id: str
    at: datetime
    attempt: int
    epoch: int
    occurrence: int = 1
    key: str | None = None
    payload: Raw = _NULL
    payload_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    traceparent: str | None = None
    attempts_max: int | UnsetType | None = UNSET


class _LeasedEvents(Struct, frozen=True):
    events: list[_Leased]


_leases_decoder = msgspec_json.Decoder(_LeasedEvents)
_settled = decoded(Settled)


def _lease(tenant: str, leased: _Leased) -> Lease:
    raw = bytes(leased.payload) if leased.payload_base64 is None else b64decode(leased.payload_base64)
    occurrence = Occurrence(
        leased.id,
        leased.occurrence,
        leased.attempt,
        tenant,
        _millis(leased.at),
        leased.epoch,
        raw,
        leased.key,
        leased.content_type,
        tuple(leased.headers.items()),
        leased.tags,
        leased.traceparent,
        leased.attempts_max,
    )
    return Lease(leased.lease, _millis(leased.until), occurrence)


def _millis(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
