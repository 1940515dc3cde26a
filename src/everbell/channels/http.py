"""Delivery over HTTP: one POST per event, or many events in one POST in the CloudEvents batch format.

The tenant's policy says which status codes mean success (by default 2xx) and which are permanent refusals (4xx except
408, 409, 425 and 429). All other failures are retried, after `Retry-After` if the receiver sends it. Redirects are not
followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime

import msgspec

from everbell.channels.envelope import (
    batch_body,
    batch_headers,
    event_headers,
    payload_headers,
    structured_body,
    structured_headers,
)
from everbell.channels.port import Delivery, faulty
from everbell.clock import Clock
from everbell.core.bigben import full_event
from everbell.core.delivery_form import form_of
from everbell.core.retry import Outcome
from everbell.core.tenant import Tenant
from everbell.core.time import DAY_MS
from everbell.core.url import split_url
from everbell.errors import InvalidInput
from everbell.http.client import HttpFailure, HttpPool, HttpReply, OutgoingRequest

_REASON_LENGTH = 200


class _Result(msgspec.Struct):
    id: str
    status: int
    reason: str | None = None


class _Results(msgspec.Struct):
    results: list[_Result]


_decode_results = msgspec.json.Decoder(_Results).decode


class HttpChannel:
    """`http://` and `https://` targets."""

    holds = False
    together = 1

    def __init__(self, pool: HttpPool, clock: Clock) -> None:
        self._pool = pool
        self._now = clock.now

    def start(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries[0].tenant.batch > 1:
            self._start_batches(deliveries)
            return
        for delivery in deliveries[0].desk.begin_all(deliveries):
            try:
                self._send_one(delivery)
            except Exception as fault:  # The deliveries after this one must be sent.
                delivery.settle(faulty(fault))

    async def close(self) -> None:
        await self._pool.close()

    def _send_one(self, delivery: Delivery) -> None:
        body = delivery.event.payload
        match form_of(delivery.event, delivery.tenant.mode):
            case "structured":
                body = structured_body(delivery)
                headers = structured_headers(delivery, body, self._now())
            case "payload":
                headers = payload_headers(delivery, body, self._now())
            case "bigben":
                body = full_event(delivery.event, self._now())
                headers = payload_headers(delivery, body, self._now())
            case _:
                headers = event_headers(delivery, self._now())
        self._send(delivery, headers, body, lambda reply: self._settle_one(delivery, reply))

    def _start_batches(self, deliveries: Sequence[Delivery]) -> None:
        by_target: dict[str, list[Delivery]] = {}
        for delivery in deliveries[0].desk.begin_all(deliveries):
            by_target.setdefault(delivery.event.to, []).append(delivery)
        for batch in by_target.values():
            size = batch[0].tenant.batch
            for start in range(0, len(batch), size):
                together = batch[start : start + size]
                try:
                    self._send_batch(together)
                except Exception as fault:
                    together[0].desk.settle_all(together, faulty(fault))

    def _send_batch(self, batch: list[Delivery]) -> None:
        body = batch_body(batch)
        headers = batch_headers(batch[0].tenant, body, [each.event.name for each in batch], self._now())
        self._send(batch[0], headers, body, lambda reply: self._settle_batch(batch, reply))

    def _send(
        self, first: Delivery, headers: bytes, body: bytes, done: Callable[[HttpReply | HttpFailure], None]
    ) -> None:
        try:
            scheme, host, port, target = split_url(first.event.to)
        except InvalidInput as invalid:
            done(HttpFailure("refused-address", invalid.reason))
            return
        request = OutgoingRequest(scheme, host, port, "POST", target, headers, body, first.tenant.name)
        self._pool.send(request, first.tenant.timeout_ms / 1_000, done)

    def _settle_one(self, delivery: Delivery, reply: HttpReply | HttpFailure) -> None:
        if _had_no_turn(reply):
            delivery.give_back()
        else:
            delivery.settle(self._judge(reply, delivery.tenant))

    def _settle_batch(self, batch: list[Delivery], reply: HttpReply | HttpFailure) -> None:
        if _had_no_turn(reply):
            for delivery in batch:
                delivery.give_back()
            return
        tenant = batch[0].tenant
        whole = self._judge(reply, tenant)
        single: dict[str, Outcome] = {}
        if whole.result == "delivered" and isinstance(reply, HttpReply) and reply.body.lstrip()[:1] == b"{":
            single = self._single_results(reply, tenant)
        if not single:
            batch[0].desk.settle_all(batch, whole)
            return
        for delivery in batch:
            delivery.settle(single.get(delivery.event.name, whole))

    def _single_results(self, reply: HttpReply, tenant: Tenant) -> dict[str, Outcome]:
        """The results of single events in the answer to a batch: `{"results": [{"id": …, "status": 503}, …]}`."""
        try:
            results = _decode_results(reply.body).results
        except msgspec.MsgspecError:
            return {}  # Some other JSON: the answer applies to the whole batch.
        return {
            result.id: _classified(
                tenant, result.status, (result.reason or f"status {result.status}")[:_REASON_LENGTH], None
            )
            for result in results
        }

    def _judge(self, reply: HttpReply | HttpFailure, tenant: Tenant) -> Outcome:
        try:
            return self._judged(reply, tenant)
        except Exception as fault:  # Without an outcome, the delivery would be in flight for ever.
            return faulty(fault)

    def _judged(self, reply: HttpReply | HttpFailure, tenant: Tenant) -> Outcome:
        if isinstance(reply, HttpFailure):
            if reply.kind == "timeout":
                return Outcome("timeout", reply.reason)
            return Outcome("refused" if reply.kind == "refused-address" else "failed", f"{reply.kind}: {reply.reason}")
        status = reply.status
        if status in tenant.done:
            return Outcome("delivered", None, status)
        text = reply.body[:_REASON_LENGTH].decode("utf-8", "replace")
        reason = f"HTTP {status}" + (f": {text}" if text.strip() else "")
        if 300 <= status < 400:
            where = reply.headers.get("location", "its target")[:_REASON_LENGTH]
            reason = f"HTTP {status}: redirects are not followed; schedule to {where!r}"
        return _classified(tenant, status, reason, self._retry_after_ms(reply))

    def _retry_after_ms(self, reply: HttpReply) -> int | None:
        value = reply.headers.get("retry-after")
        if value is None:
            return None
        if value.isdecimal() and value.isascii():
            return min(int(value[:9]) * 1_000, DAY_MS)
        try:
            at = int(parsedate_to_datetime(value).timestamp() * 1_000)
        except (ValueError, OverflowError):
            return None
        return min(max(at - self._now(), 0), DAY_MS)


def _had_no_turn(reply: HttpReply | HttpFailure) -> bool:
    """Whether nothing was tried because other hosts had their turn. Then there was no attempt."""
    return isinstance(reply, HttpFailure) and reply.kind == "no-turn"


def _classified(tenant: Tenant, status: int, reason: str, retry_after_ms: int | None) -> Outcome:
    if status in tenant.done:
        return Outcome("delivered", None, status)
    if status in tenant.permanent:
        return Outcome("refused", reason, status)
    return Outcome("failed", reason, status, retry_after_ms)
