"""The paths of the HTTP API. Names of tenants, events and queues may contain anything, so they are percent-encoded."""

from __future__ import annotations

from urllib.parse import quote

from everbell.errors import InvalidInput


def quoted(name: str) -> str:
    """A name as a part of a path. Raises `InvalidInput` for one that cannot be sent."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise no_text(name) from error


def no_text(text: str) -> InvalidInput:
    """The error about text that cannot be sent, such as arguments of a program that were not UTF-8."""
    return InvalidInput(f"{text!r} has characters that UTF-8 cannot say: give text without halves of surrogate pairs")


def tenant_path(tenant: str) -> str:
    return f"/v1/tenants/{quoted(tenant)}"


def events_path(tenant: str) -> str:
    return f"{tenant_path(tenant)}/events"


def event_path(tenant: str, event_id: str) -> str:
    return f"{events_path(tenant)}/{quoted(event_id)}"


def queue_path(tenant: str, queue: str) -> str:
    return f"{tenant_path(tenant)}/queues/{quoted(queue)}"
