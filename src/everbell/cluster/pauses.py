"""The pauses: a node reads them from the cluster value and writes them through the log.

A node that writes a pause also drops the documents of pauses that are over, so no node has to watch the clock for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.cluster import Command, DropDocument, Policy, PutDocument
from everbell.core.pause import (
    PAUSES_MAX,
    TENANT_PAUSES_MAX,
    Pause,
    Put,
    What,
    encode_pause,
    label_of,
    pauses_in,
    place_of,
)
from everbell.core.request import Handler
from everbell.engine.requests import DropPause, ListPauses, PutPause
from everbell.errors import Conflict, NotFound, OutcomeUnknown

_DROPPED_AT_ONCE = 10
"""How many expired pauses one write drops."""


class ClusterPauses:
    """All pauses. `documents` returns the current documents of the cluster; `write` appends a command, waits until this
    node has played it, and returns its index."""

    def __init__(
        self,
        documents: Callable[[], Mapping[str, Policy]],
        write: Callable[[Command], Awaitable[int]],
        clock: Clock,
        unheard: Callable[[int], Awaitable[tuple[str, ...]]] | None = None,
    ) -> None:
        self._documents = documents
        self._write = write
        self._clock = clock
        self._unheard = unheard
        """Waits until all nodes have played an entry, and returns the names of nodes that have not done so in time."""

    def handlers(self) -> tuple[Handler, ...]:
        """The requests about pauses."""
        return (
            ListPauses.by(lambda request: self.pauses()),
            PutPause.by(lambda request: self.put(request.pause)),
            DropPause.by(lambda request: self.drop(request.tenant, request.what, request.name)),
        )

    async def pauses(self) -> list[Pause]:
        """The pauses that are in force now, the oldest first."""
        return self._on()

    async def put(self, pause: Pause) -> Put:
        """Add a pause, or change one. It is in force on every reachable node before this returns.

        Raises `Conflict` when there are too many, and `LogError`.
        """
        on = self._on()
        before = next((each for each in on if each.place == pause.place), None)
        if before is not None:
            pause = replace(pause, since_at=before.since_at)
        else:
            _check_room(on, pause.tenant)
        await self._clear_away()
        index = await self._write(PutDocument(pause.place, encode_pause(pause)))
        policy = self._documents().get(pause.place)
        if policy is None or policy.version < index:
            raise OutcomeUnknown(f"whether {pause.label} is paused is not known yet: look, or ask again")
        return Put(pause, before is None, () if self._unheard is None else await self._unheard(index))

    async def drop(self, tenant: str, what: What, name: str) -> Pause:
        """End a pause, and return it. Raises `NotFound` and `LogError`."""
        place = place_of(tenant, what, name)
        pause = next((each for each in self._on() if each.place == place), None)
        if pause is None:
            raise NotFound(f"{label_of(tenant, what, name)} is not paused")
        await self._write(DropDocument(place))
        if place in self._documents():
            raise OutcomeUnknown(f"whether {pause.label} goes on is not known yet: look, or ask again")
        return pause

    def _on(self) -> list[Pause]:
        now = self._clock.now()
        return [pause for pause in pauses_in(self._documents())[0] if pause.is_on(now)]

    async def _clear_away(self) -> None:
        now = self._clock.now()
        documents = self._documents()
        over = [pause.place for pause in pauses_in(documents)[0] if not pause.is_on(now)]
        for place in over[:_DROPPED_AT_ONCE]:
            # Only this version: another caller may be pausing the same again.
            await self._write(DropDocument(place, documents[place].version))


class LoneDocuments:
    """The documents of an engine without a cluster, as in tests: they live as long as the engine."""

    def __init__(self, follow: Callable[[Mapping[str, Policy]], None]) -> None:
        self._documents: dict[str, Policy] = {}
        self._follow = follow
        self._index = 0

    def documents(self) -> Mapping[str, Policy]:
        return self._documents

    async def write(self, command: Command) -> int:
        self._index += 1
        if isinstance(command, PutDocument):
            self._documents = {**self._documents, command.name: Policy(self._index, command.document)}
        elif isinstance(command, DropDocument):
            self._documents = {name: kept for name, kept in self._documents.items() if name != command.name}
        self._follow(self._documents)
        return self._index


def _check_room(on: list[Pause], tenant: str) -> None:
    if sum(pause.tenant == tenant for pause in on) >= TENANT_PAUSES_MAX:
        raise Conflict(
            f"{TENANT_PAUSES_MAX} things of tenant {tenant!r} are paused, and no more are possible: resume some, or"
            " pause the target or the tenant as a whole"
        )
    if len(on) >= PAUSES_MAX:
        raise Conflict(f"{PAUSES_MAX} things are paused in this cluster, and no more are possible: resume some")
