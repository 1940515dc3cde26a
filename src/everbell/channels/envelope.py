"""Headers and bodies of deliveries over HTTP: CloudEvents, Standard Webhooks signatures, trace context, our own
headers.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

import msgspec

from everbell.channels.port import Delivery
from everbell.core.delivery_form import users_headers
from everbell.core.ids import is_made
from everbell.core.tenant import Tenant
from everbell.core.time import format_instant

CE_TYPE = "dev.everbell.event"

_encode = msgspec.json.encode
# CloudEvents percent-encodes everything beyond printable ASCII, and space, quote and percent.
_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def event_headers(delivery: Delivery, now: int) -> bytes:
    """The encoded headers of a single event in binary mode."""
    event = delivery.event
    name = event.name
    if not _is_plain(name):
        name = quote(name, safe=_SAFE)
    due = format_instant(event.due_at)
    head = (
        f"{_fixed(event.tenant, event.content_type)}ce-id: {name}\r\nce-time: {due}\r\n"
        f"everbell-occurrence: {event.occurrence}\r\neverbell-attempt: {delivery.attempt}\r\n"
        f"everbell-epoch: {delivery.epoch}\r\neverbell-due: {due}\r\n"
    )
    if event.key is not None:
        head += f"ce-partitionkey: {quote(event.key, safe=_SAFE)}\r\n"
    return _with_extras(head, delivery, name, event.payload, now)


def payload_headers(delivery: Delivery, body: bytes, now: int) -> bytes:
    """The encoded headers of a bare payload, or of a body around it. Our own headers identify duplicates."""
    event = delivery.event
    name = quote(event.name, safe=_SAFE)
    head = (
        f"content-type: {event.content_type or 'application/json'}\r\nuser-agent: everbell\r\n"
        f"everbell-id: {name}\r\neverbell-occurrence: {event.occurrence}\r\neverbell-attempt: {delivery.attempt}\r\n"
        f"everbell-epoch: {delivery.epoch}\r\neverbell-due: {format_instant(event.due_at)}\r\n"
    )
    return _with_extras(head, delivery, name, body, now)


def structured_body(delivery: Delivery) -> bytes:
    """A single event as one JSON document."""
    event = delivery.event
    return _structured(delivery, f'{_fixed_attributes(event.tenant)},"time":"{format_instant(event.due_at)}"')


def structured_headers(delivery: Delivery, body: bytes, now: int) -> bytes:
    """The encoded headers of a single JSON document."""
    head = "content-type: application/cloudevents+json; charset=utf-8\r\nuser-agent: everbell\r\n"
    return _with_extras(head, delivery, quote(delivery.event.name, safe=_SAFE), body, now)


def _with_extras(head: str, delivery: Delivery, name: str, body: bytes, now: int) -> bytes:
    """Add the trace, the event's own headers and the signature."""
    event, tenant = delivery.event, delivery.tenant
    if event.traceparent is not None:
        head += f"traceparent: {event.traceparent}\r\n"
    for header, value in extra_headers(delivery):
        head += f"{header}: {value}\r\n"
    if tenant.secrets:
        head += _signature(tenant, name, body, now)
    return head.encode("ascii")


def extra_headers(delivery: Delivery) -> Sequence[tuple[str, str]]:
    """The headers of the event, of its tenant, and the one with the number of the occurrence."""
    event, tenant = delivery.event, delivery.tenant
    if not (event.headers or tenant.headers or tenant.sequence_header):
        return ()
    headers = [*users_headers(event.headers)]
    own = {name for name, _ in headers}
    headers += [header for header in tenant.headers if header[0] not in own]
    if tenant.sequence_header is not None and tenant.sequence_header not in own:
        headers.append((tenant.sequence_header, str(event.occurrence)))
    return headers


def batch_headers(tenant: Tenant, body: bytes, names: Sequence[str], now: int) -> bytes:
    """The encoded headers of a batch of events with these names."""
    headers = "content-type: application/cloudevents-batch+json; charset=utf-8\r\nuser-agent: everbell\r\n"
    headers += "".join(f"{header}: {value}\r\n" for header, value in tenant.headers)
    if tenant.secrets:
        # An id of its own: a receiver that knows the id of one of the events must not drop the others. The same events
        # together have the same id in every attempt.
        batch_id = f"batch_{sha256(chr(0).join(names).encode()).hexdigest()[:32]}"
        headers += _signature(tenant, batch_id, body, now)
    return headers.encode("ascii")


def batch_body(batch: Sequence[Delivery]) -> bytes:
    """The events of a batch as a JSON array."""
    parts: list[bytes] = []
    due_at, fixed = -1, ""
    for delivery in batch:
        event = delivery.event
        if event.due_at != due_at:
            due_at = event.due_at
            fixed = f'{_fixed_attributes(event.tenant)},"time":"{format_instant(due_at)}"'
        parts.append(_structured(delivery, fixed))
    return b"[" + b",".join(parts) + b"]"


def _structured(delivery: Delivery, fixed: str) -> bytes:
    """One event as JSON. It is concatenated by hand, because the payload is JSON already and the rest hardly varies."""
    event = delivery.event
    name = (
        f'"{event.id}"'
        if event.repeat is None and event.origin is None and is_made(event.id)
        else _encode(event.name).decode()
    )
    attributes = (
        f'{fixed},"id":{name},'
        f'"everbelloccurrence":{event.occurrence},"everbellattempt":{delivery.attempt},"everbellepoch":{delivery.epoch}'
    )
    if event.key is not None:
        attributes += f',"partitionkey":{_encode(event.key).decode()}'
    if event.traceparent is not None:
        attributes += f',"traceparent":"{event.traceparent}"'
    if event.content_type is None:
        return b'%b,"datacontenttype":"application/json","data":%b}' % (attributes.encode(), event.payload)
    kind = _encode(event.content_type)
    return b'%b,"datacontenttype":%b,"data_base64":"%b"}' % (attributes.encode(), kind, b64encode(event.payload))


@lru_cache(maxsize=1_024)
def _fixed_attributes(tenant: str) -> str:
    return f'{{"specversion":"1.0","type":"{CE_TYPE}","source":"{source_of(tenant)}"'


@lru_cache(maxsize=1_024)
def _fixed(tenant: str, content_type: str | None) -> str:
    return (
        f"content-type: {content_type or 'application/json'}\r\nuser-agent: everbell\r\n"
        f"ce-specversion: 1.0\r\nce-type: {CE_TYPE}\r\nce-source: {source_of(tenant)}\r\n"
    )


def source_of(tenant: str) -> str:
    """The `source` attribute of a tenant's events."""
    return f"/v1/tenants/{tenant}"


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable() and not (" " in name or '"' in name or "%" in name)


def _signature(tenant: Tenant, name: str, body: bytes, now: int) -> str:
    return "".join(f"{header}: {text}\r\n" for header, text in signature_headers(tenant, name, body, now))


def signature_headers(tenant: Tenant, name: str, body: bytes, now: int) -> tuple[tuple[str, str], ...]:
    """Standard Webhooks: one signature per secret, so that receivers can switch while a secret is rotated."""
    timestamp = now // 1_000
    signed = b"%b.%d.%b" % (name.encode(), timestamp, body)
    signatures = " ".join(
        "v1," + b64encode(hmac.digest(_key(secret), signed, sha256)).decode("ascii") for secret in tenant.secrets
    )
    return ("webhook-id", name), ("webhook-timestamp", str(timestamp)), ("webhook-signature", signatures)


@lru_cache(maxsize=256)
def _key(secret: str) -> bytes:
    return b64decode(secret.removeprefix("whsec_"))
