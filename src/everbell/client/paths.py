"""The paths of the HTTP API. Names of tenants, events and queues may contain anything, so they are percent-encoded."""

from __future__ import annotations

from urllib.parse import quote


def tenant_path(tenant: str) -> str:
    """What belongs to a tenant."""
    return f"/v1/tenants/{quote(tenant, safe='')}"


def events_path(tenant: str) -> str:
    """The events of a tenant."""
    return f"{tenant_path(tenant)}/events"


def event_path(tenant: str, event_id: str) -> str:
    """One event."""
    return f"{events_path(tenant)}/{quote(event_id, safe='')}"


def queue_path(tenant: str, queue: str) -> str:
    """One queue."""
    return f"{tenant_path(tenant)}/queues/{quote(queue, safe='')}"
