"""A delivery as a Kafka record: CloudEvents attributes (`ce_…`), signatures, trace context, our own headers.

The value is the payload as it came. With a tenant's `mode` of `structured` or `bigben` it is one JSON document; with
`payload` and `bigben` there are no CloudEvents attributes.

This code runs for every event, in the busiest process, so headers that many events share are cached.
"""

from __future__ import annotations

from functools import lru_cache

from everbell.channels.envelope import CE_TYPE, extra_headers, signature_headers, source_of, structured_body
from everbell.channels.port import Delivery
from everbell.core.bigben import full_event
from everbell.core.delivery_form import form_of
from everbell.core.time import format_instant

Header = tuple[str, bytes]
OutgoingHeaders = list[Header]

_JSON = "application/json"
_ONCE = ("everbell-occurrence", b"1")


def record_of(delivery: Delivery, now: int) -> tuple[bytes, OutgoingHeaders]:
    """The value and the headers of the record."""
    event, tenant = delivery.event, delivery.tenant
    value, name, (due, ce_time) = event.payload, event.name.encode(), _due(event.due_at)
    occurrence = _ONCE if event.occurrence == 1 else ("everbell-occurrence", b"%d" % event.occurrence)
    form = form_of(event, tenant.mode)
    if form == "binary":
        common = _binary(event.tenant, event.content_type, delivery.attempt, delivery.epoch)
        headers = [*common, ("ce_id", name), ce_time, due, occurrence]
        if event.key is not None:
            headers.append(("ce_partitionkey", event.key.encode()))
    elif form == "structured":
        value = structured_body(delivery)
        content_type = "application/cloudevents+json; charset=utf-8"
        headers = [*_bare(content_type, delivery.attempt, delivery.epoch), due, occurrence]
    else:
        value = full_event(event, now) if form == "bigben" else value
        content_type = event.content_type or _JSON
        headers = [*_bare(content_type, delivery.attempt, delivery.epoch), ("everbell-id", name), due, occurrence]
    if event.traceparent is not None:
        headers.append(("traceparent", event.traceparent.encode()))
    headers += [(header, text.encode()) for header, text in extra_headers(delivery)]
    if tenant.secrets:
        headers += [(header, text.encode()) for header, text in signature_headers(tenant, event.name, value, now)]
    return value, headers


@lru_cache(maxsize=4_096)
def _binary(tenant: str, content_type: str | None, attempt: int, epoch: int) -> tuple[Header, ...]:
    """The headers that the events of a tenant share."""
    return (
        *_bare(content_type or _JSON, attempt, epoch),
        ("ce_specversion", b"1.0"),
        ("ce_type", CE_TYPE.encode()),
        ("ce_source", source_of(tenant).encode()),
    )


@lru_cache(maxsize=4_096)
def _bare(content_type: str, attempt: int, epoch: int) -> tuple[Header, ...]:
    return (
        ("content-type", content_type.encode()),
        ("everbell-attempt", b"%d" % attempt),
        ("everbell-epoch", b"%d" % epoch),
    )


@lru_cache(maxsize=256)
def _due(due_at: int) -> tuple[Header, Header]:
    """Cached, because events that are due together are sent together."""
    due = format_instant(due_at).encode()
    return ("everbell-due", due), ("ce_time", due)
