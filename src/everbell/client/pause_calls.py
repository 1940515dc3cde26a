"""Calls about what is paused: a tenant, a key, a target or a queue. (A recurring event has `pause` and `resume`.)"""

from __future__ import annotations

from typing import Any

import msgspec

from everbell.client.answers import Paused
from everbell.client.call import Call
from everbell.client.event_json import Duration, Instant, duration_text, encode_json, instant_text
from everbell.client.paths import tenant_path
from everbell.client.queries import with_query
from everbell.core.pause import What


class _Pauses(msgspec.Struct, frozen=True):
    pauses: tuple[Paused, ...]


def pauses(tenant: str) -> Call[tuple[Paused, ...]]:
    """All that is paused in this client's tenant, the oldest first."""
    return Call(
        "GET", _path(tenant), lambda status, body: msgspec.json.decode(body, type=_Pauses).pauses, repeatable=True
    )


def add_pause(
    tenant: str,
    what: What,
    name: str | None = None,
    *,
    note: str | None = None,
    until: Instant | None = None,
    for_: Duration | None = None,
) -> Call[Paused]:
    """Pause the tenant as a whole, or the key, target or queue of this name: its events are taken in, and wait.

    To pause what is paused gives it another note and end. Raises `Conflict` when too much is paused.
    """
    body: dict[str, Any] = {"what": what, "name": name, "note": note}
    if until is not None:
        body["until"] = instant_text(until, "until")
    if for_ is not None:
        body["for"] = for_ if isinstance(for_, str | int | float) else duration_text(for_)
    return Call("POST", _path(tenant), _paused, encode_json(body), repeatable=True)


def end_pause(tenant: str, what: What, name: str | None = None) -> Call[Paused]:
    """Let it go on: what is overdue goes out, the oldest first. Raises `NotFound` when it is not paused."""
    query = {"what": what} if name is None else {"what": what, "name": name}
    return Call("DELETE", with_query(_path(tenant), query), _paused)


def _path(tenant: str) -> str:
    return f"{tenant_path(tenant)}/pauses"


def _paused(status: int, body: bytes) -> Paused:
    return msgspec.json.decode(body, type=Paused)
