"""Requests of BigBen: each creates, moves or removes the event of one id.

The event has the id of the request as its id and as its key, so that records in Kafka have it as their key. The
payload is text, and is kept as these bytes with a content type; an event without a payload has none.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from everbell.core.batch_item import BatchItem, ItemSpec
from everbell.core.bigben import EventError, EventResponse, event_time, native_tenant, parse_event_time
from everbell.core.delivery_form import BIGBEN_FORM
from everbell.core.spec import Draft
from everbell.core.time import format_instant
from everbell.edge.drafting import Edge
from everbell.errors import InvalidInput

JSON_TYPE = "application/json; charset=utf-8"
PAYLOAD_ONLY_TAG = "payload-only"
"""Marks events with a bare payload, so that an answer about them can tell."""

POLICY: dict[str, Any] = {
    "mode": "payload",
    "retry": {"max_attempts": 4, "backoff": "1s", "max_backoff": "4s"},
    "done": ["2xx"],
    "permanent": ["4xx"],
    "on_dead": "park",
    "reuse_ids": True,
}
"""The fields of a policy that make deliveries look like those of BigBen."""

# How often and how long a request waits for the policy of its tenant, which another node may just have written.
_LOOKS = 50
_LOOK_S = 0.02


class EventRequest(Struct, frozen=True, rename="camel"):
    """A request as clients of BigBen write it. Unknown fields are ignored."""

    id: str | None = None
    event_time: str | None = None
    tenant: str | None = None
    payload: str | None = None
    mode: Literal["UPSERT", "REMOVE"] = "UPSERT"
    delivery_option: Literal["FULL_EVENT", "PAYLOAD_ONLY"] | None = None


class EventPlan(Struct, frozen=True):
    """A checked request: the item to apply, and whether its time is over."""

    tenant: str
    item: BatchItem
    is_late: bool


def plan(request: EventRequest, edge: Edge, now: int, produced_at: int | None = None) -> EventPlan:
    """Check a request. Raises `InvalidInput` with the words of BigBen."""
    if request.tenant is None:
        raise InvalidInput("tenant not present")
    if not (request.id or "").strip():
        raise InvalidInput("id not present")
    tenant = native_tenant(request.tenant)
    if request.mode == "REMOVE":
        spec = ItemSpec(mode="cancel", id=request.id)
        return EventPlan(tenant, edge.item(spec, edge.policy_of_known(tenant), now, None), is_late=False)
    if request.event_time is None:
        raise InvalidInput("event time not present")
    if not edge.is_registered(tenant):
        raise InvalidInput("tenant not registered / unknown tenant")
    try:
        due_at = parse_event_time(request.event_time)
    except InvalidInput:
        raise InvalidInput("event time can not be parsed. Must be in ISO 8601 format.") from None
    is_bare = request.delivery_option == "PAYLOAD_ONLY"
    if is_bare and request.payload is None:
        raise InvalidInput("payload not present: PAYLOAD_ONLY needs one")
    spec = ItemSpec(
        mode="put",
        id=request.id,
        key=request.id,
        at=format_instant(due_at),
        payload_base64=None if request.payload is None else b64encode(request.payload.encode()).decode(),
        content_type=None if request.payload is None else JSON_TYPE,
        tags=[PAYLOAD_ONLY_TAG] if is_bare else None,
    )
    item = edge.item(spec, edge.policy(tenant), now, None, None, produced_at)
    assert item.draft is not None, "a put has a draft"
    if not is_bare:
        item = replace(item, draft=in_full(item.draft))
    return EventPlan(tenant, item, due_at <= now)


def in_full(draft: Draft) -> Draft:
    """The draft of an event that its receiver gets in full (`core.bigben.full_event`)."""
    return replace(draft, headers=(*draft.headers, BIGBEN_FORM))


async def until_registered(name: str | None, edge: Edge) -> None:
    """Wait for the policy of a tenant of BigBen: one that was registered a moment ago may still be on its way."""
    try:
        tenant = native_tenant(name or "")
    except InvalidInput:
        return
    for _ in range(_LOOKS):
        if edge.is_registered(tenant):
            return
        await asyncio.sleep(_LOOK_S)


def response(request: EventRequest, status: str | None, now: int, error: EventError | None = None) -> EventResponse:
    """The answer to a request."""
    is_triggered = status == "TRIGGERED"
    return EventResponse(
        id=request.id,
        event_time=request.event_time,
        tenant=request.tenant,
        mode=request.mode,
        payload=request.payload,
        delivery_option=request.delivery_option or "FULL_EVENT",
        event_id=request.id if status in ("ACCEPTED", "UPDATED", "DELETED") else None,
        triggered_at=event_time(now) if is_triggered else None,
        event_status=status,
        error=error,
    )
