"""A delivery as a record of Kafka: CloudEvents in Kafka's binding (`ce_…`), signatures, trace context, our own headers.

The value is the payload as it came. A tenant whose `mode` is `structured` gets one JSON document instead, and one whose
`mode` is `payload` gets no CloudEvents attributes.
"""

from __future__ import annotations

from functools import lru_cache

from everbell.channels.envelope import CE_TYPE, signature_headers, source_of, structured_body
from everbell.channels.port import Delivery
from everbell.core.time import format_instant

Headers = list[tuple[str, bytes]]


def record_of(delivery: Delivery, now: int) -> tuple[bytes, Headers]:
    """The value and the headers of the record."""
    event, tenant = delivery.event, delivery.tenant
    value, name, due = event.payload, event.name.encode(), _due(event.due_at)
    match tenant.mode:
        case "binary":
            headers = [*_binary(event.tenant, event.content_type), ("ce_id", name), ("ce_time", due)]
            if event.key is not None:
                headers.append(("ce_partitionkey", event.key.encode()))
        case "structured":
            value = structured_body(delivery)
            headers = [("content-type", b"application/cloudevents+json; charset=utf-8")]
        case _:
            headers = [("content-type", (event.content_type or "application/json").encode()), ("everbell-id", name)]
    headers += (
        ("everbell-occurrence", b"%d" % event.occurrence),
        ("everbell-attempt", b"%d" % delivery.attempt),
        ("everbell-epoch", b"%d" % delivery.epoch),
        ("everbell-due", due),
    )
    if event.traceparent is not None:
        headers.append(("traceparent", event.traceparent.encode()))
    if event.headers:
        headers += [(header, text.encode()) for header, text in event.headers]
    if tenant.secrets:
        headers += [(header, text.encode()) for header, text in signature_headers(tenant, event.name, value, now)]
    return value, headers


@lru_cache(maxsize=1_024)
def _binary(tenant: str, content_type: str | None) -> tuple[tuple[str, bytes], ...]:
    """What all events of a tenant have in common."""
    return (
        ("content-type", (content_type or "application/json").encode()),
        ("ce_specversion", b"1.0"),
        ("ce_type", CE_TYPE.encode()),
        ("ce_source", source_of(tenant).encode()),
    )


@lru_cache(maxsize=256)
def _due(due_at: int) -> bytes:
    """Events that are due together are sent together."""
    return format_instant(due_at).encode()
