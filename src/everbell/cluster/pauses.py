"""The pauses behind a node: read from the cluster's value, written through the log.

A document whose pause is over is dropped by whoever writes the next one, so that nobody has to watch the clock for all.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.cluster import Command, DropPolicy, Policy, SetPolicy
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
from everbell.engine.pauses import Pauses
from everbell.errors import Conflict, NotFound, OutcomeUnknown

_log = logging.getLogger("everbell.cluster")

_DROPPED_AT_ONCE = 10
"""How many that are over one write clears away."""


class ClusterPauses:
    """All pauses. `documents` gives those of the cluster as of now; `write` appends a command, waits until it was
    played, and returns its index."""

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
        """Waits until all nodes have played an entry, and returns the names of those that have not in time."""

    async def pauses(self) -> list[Pause]:
        """Those that hold now, the oldest first."""
        return self._on()

    async def put(self, pause: Pause) -> Put:
        """Pause something, or say something else of what is paused already. It holds by then, on every node that could
        be asked. Raises `Conflict` when there are too many, `LogError`."""
        on = self._on()
        before = next((each for each in on if each.place == pause.place), None)
        if before is not None:
            pause = replace(pause, since_at=before.since_at)
        else:
            _check_room(on, pause.tenant)
        await self._clear_away()
        index = await self._write(SetPolicy(pause.place, encode_pause(pause)))
        policy = self._documents().get(pause.place)
        if policy is None or policy.version < index:
            raise OutcomeUnknown(f"whether {pause.label} is paused is not known yet: look, or ask again")
        return Put(pause, before is None, () if self._unheard is None else await self._unheard(index))

    async def drop(self, tenant: str, what: What, name: str) -> Pause:
        """Let something go on; returns the pause that was. Raises `NotFound`, `LogError`."""
        place = place_of(tenant, what, name)
        pause = next((each for each in self._on() if each.place == place), None)
        if pause is None:
            raise NotFound(f"{label_of(tenant, what, name)} is not paused")
        await self._write(DropPolicy(place))
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
            # Only this one: somebody may be pausing the same again.
            await self._write(DropPolicy(place, documents[place].version))


class PauseFollower:
    """Keeps what an engine holds up in step with the documents."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._documents: Mapping[str, Policy] = {}
        self._known: list[Pause] = []
        self._unclear: list[str] = []

    def follow(self, documents: Mapping[str, Policy]) -> None:
        """These are the documents now."""
        if documents is self._documents:
            return
        self._documents = documents
        known, unclear = pauses_in(documents)
        if unclear != self._unclear:
            self._unclear = unclear
            for name in unclear:
                _log.error("%s is not understood here, because a newer version wrote it: it is not paused", name)
        if known != self._known:
            self._known = known
            self._pauses.follow(known)


class LoneDocuments:
    """Documents of an engine that is no node of a cluster, as in tests: they are gone when it is."""

    def __init__(self, pauses: Pauses) -> None:
        self._documents: dict[str, Policy] = {}
        self._follower = PauseFollower(pauses)
        self._index = 0

    def documents(self) -> Mapping[str, Policy]:
        return self._documents

    async def write(self, command: Command) -> int:
        self._index += 1
        if isinstance(command, SetPolicy):
            self._documents = {**self._documents, command.tenant: Policy(self._index, command.document)}
        elif isinstance(command, DropPolicy):
            self._documents = {name: kept for name, kept in self._documents.items() if name != command.tenant}
        self._follower.follow(self._documents)
        return self._index


def _check_room(on: list[Pause], tenant: str) -> None:
    if sum(pause.tenant == tenant for pause in on) >= TENANT_PAUSES_MAX:
        raise Conflict(
            f"{TENANT_PAUSES_MAX} things of tenant {tenant!r} are paused, and no more are possible: resume some, or"
            " pause the target or the tenant as a whole"
        )
    if len(on) >= PAUSES_MAX:
        raise Conflict(f"{PAUSES_MAX} things are paused in this cluster, and no more are possible: resume some")
