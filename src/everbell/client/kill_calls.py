"""The calls on kills of a tag, a key, a target or a tenant."""

from __future__ import annotations

import msgspec

from everbell.client.answers import Killed
from everbell.client.call import Call, decoded
from everbell.client.event_json import encode_json
from everbell.client.operation import Calls, operation
from everbell.client.paths import tenant_path
from everbell.client.queries import with_query
from everbell.core.kill import KillKind


class _KillList(msgspec.Struct, frozen=True):
    kills: tuple[Killed, ...]


class KillCalls(Calls):
    """Operations on kills."""

    @operation
    def kills(self) -> Call[tuple[Killed, ...]]:
        """All kills of this client's tenant, the oldest first."""
        return Call("GET", _path(self.tenant), lambda status, body: _kills(status, body).kills, repeatable=True)

    @operation
    def kill(self, what: KillKind, name: str | None = None, *, note: str | None = None) -> Call[Killed]:
        """End all events with this tag, key or target, or all of the tenant, and those that arrive, until `lift`.

        Raises `Conflict` when there are too many kills.
        """
        body = encode_json({"what": what, "name": name, "note": note})
        return Call("POST", _path(self.tenant), _killed, body, repeatable=True)

    @operation
    def lift(self, what: KillKind, name: str | None = None) -> Call[Killed]:
        """Lift a kill: new events are delivered again. Raises `NotFound` when there is no such kill."""
        query = {"what": what} if name is None else {"what": what, "name": name}
        return Call("DELETE", with_query(_path(self.tenant), query), _killed)


def _path(tenant: str) -> str:
    return f"{tenant_path(tenant)}/kills"


_killed = decoded(Killed)
_kills = decoded(_KillList)
