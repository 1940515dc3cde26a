"""The calls on pauses of a tenant, a key, a target or a queue. (A recurring event has `pause` and `resume`.)"""

from __future__ import annotations

from typing import Any

import msgspec

from everbell.client.answers import Paused
from everbell.client.call import Call, decoded
from everbell.client.event_json import DurationLike, InstantLike, duration_text, encode_json, instant_text
from everbell.client.operation import Calls, operation
from everbell.client.paths import tenant_path
from everbell.client.queries import with_query
from everbell.core.pause import What


class _PauseList(msgspec.Struct, frozen=True):
    pauses: tuple[Paused, ...]


class PauseCalls(Calls):
    """Operations on pauses."""

    @operation
    def pauses(self) -> Call[tuple[Paused, ...]]:
        """All pauses of this client's tenant, the oldest first."""
        return Call(
            "GET",
            _path(self.tenant),
            lambda status, body: _pauses(status, body).pauses,
            repeatable=True,
        )

    @operation
    def add_pause(
        self,
        what: What,
        name: str | None = None,
        *,
        note: str | None = None,
        until: InstantLike | None = None,
        for_: DurationLike | None = None,
    ) -> Call[Paused]:
        """Pause the tenant as a whole, or the key, target or queue of this name: its events are accepted, and wait.

        Pausing it again changes the note and the end. Raises `Conflict` when there are too many pauses.
        """
        body: dict[str, Any] = {"what": what, "name": name, "note": note}
        if until is not None:
            body["until"] = instant_text(until, "until")
        if for_ is not None:
            body["for"] = for_ if isinstance(for_, str | int | float) else duration_text(for_)
        return Call("POST", _path(self.tenant), _paused, encode_json(body), repeatable=True)

    @operation
    def end_pause(self, what: What, name: str | None = None) -> Call[Paused]:
        """End a pause. Overdue events are delivered, the oldest first. Raises `NotFound` when it is not paused."""
        query = {"what": what} if name is None else {"what": what, "name": name}
        return Call("DELETE", with_query(_path(self.tenant), query), _paused)


def _path(tenant: str) -> str:
    return f"{tenant_path(tenant)}/pauses"


_paused = decoded(Paused)
_pauses = decoded(_PauseList)
