"""The kills: a node reads them from the cluster value and writes them through the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from everbell.core.cluster import Command, DropDocument, Policy, PutDocument
from everbell.core.kill import (
    KILLS_MAX,
    TENANT_KILLS_MAX,
    Kill,
    KillKind,
    PutKilled,
    encode_kill,
    kill_label,
    kill_place,
    kills_in,
)
from everbell.core.request import Handler
from everbell.engine.kill_requests import DropKill, ListKills, PutKill
from everbell.errors import Conflict, NotFound, OutcomeUnknown


class ClusterKills:
    """All kills. `documents` returns the current documents of the cluster; `write` appends a command, waits until this
    node has played it, and returns its index."""

    def __init__(
        self,
        documents: Callable[[], Mapping[str, Policy]],
        write: Callable[[Command], Awaitable[int]],
        unheard: Callable[[int], Awaitable[tuple[str, ...]]] | None = None,
    ) -> None:
        self._documents = documents
        self._write = write
        self._unheard = unheard
        """Waits until all nodes have played an entry, and returns the names of nodes that have not done so in time."""

    def handlers(self) -> tuple[Handler, ...]:
        """The requests about kills."""
        return (
            ListKills.by(lambda request: self.kills()),
            PutKill.by(lambda request: self.put(request.kill)),
            DropKill.by(lambda request: self.drop(request.tenant, request.what, request.name)),
        )

    async def kills(self) -> list[Kill]:
        """All kills, the oldest first."""
        return kills_in(self._documents())[0]

    async def put(self, kill: Kill) -> PutKilled:
        """Add a kill, or change its note. It is in force on every reachable node before this returns.

        Raises `Conflict` when there are too many, and `LogError`.
        """
        on = await self.kills()
        before = next((each for each in on if each.place == kill.place), None)
        if before is not None:
            kill = replace(kill, since_at=before.since_at)
        else:
            _check_room(on, kill.tenant)
        index = await self._write(PutDocument(kill.place, encode_kill(kill)))
        policy = self._documents().get(kill.place)
        if policy is None or policy.version < index:
            raise OutcomeUnknown(f"whether {kill.label} is killed is not known yet: look, or ask again")
        return PutKilled(kill, before is None, () if self._unheard is None else await self._unheard(index))

    async def drop(self, tenant: str, what: KillKind, name: str) -> Kill:
        """Lift a kill, and return it. Raises `NotFound` and `LogError`."""
        place = kill_place(tenant, what, name)
        kill = next((each for each in await self.kills() if each.place == place), None)
        if kill is None:
            raise NotFound(f"{kill_label(tenant, what, name)} is not killed")
        await self._write(DropDocument(place))
        if place in self._documents():
            raise OutcomeUnknown(f"whether the kill of {kill.label} is lifted is not known yet: look, or ask again")
        return kill


def _check_room(on: list[Kill], tenant: str) -> None:
    if sum(kill.tenant == tenant for kill in on) >= TENANT_KILLS_MAX:
        raise Conflict(f"tenant {tenant!r} has {TENANT_KILLS_MAX} kills, and no more are possible: lift some")
    if len(on) >= KILLS_MAX:
        raise Conflict(f"there are {KILLS_MAX} kills in this cluster, and no more are possible: lift some")
