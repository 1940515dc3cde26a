"""Beacons: every node tells the others every few seconds how it is doing.

From the beacons of the others a node learns

- which ends of events it can forget, and whether it has been refilled after its start (`Sightings`);
- which due events wait in line at another node, for a slow receiver: then it does not deliver them as well.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from everbell.clock import Clock
from everbell.core.replicas.placement import Roster
from everbell.core.replicas.sightings import Sightings
from everbell.engine.replica_requests import Beacon
from everbell.errors import EverbellError
from everbell.replicas.holder import Holder
from everbell.replicas.messenger import Messenger
from everbell.replicas.port import Members
from everbell.replicas.resync import Resync

TICK_S = 0.5
# Without due events in line, a beacon is sent every so many ticks.
_QUIET_TICKS = 4


class Beacons:
    """Runs until it is stopped."""

    def __init__(
        self,
        sightings: Sightings,
        holder: Holder,
        resync: Resync,
        members: Members,
        messenger: Messenger,
        clock: Clock,
        boot: int,
    ) -> None:
        self._sightings = sightings
        self._holder = holder
        self._resync = resync
        self._members = members
        self._messenger = messenger
        self._clock = clock
        self._boot = boot
        self._boots: dict[str, int] = {}
        self._roster: Roster | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-beacons")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def leave(self) -> None:
        """Tell the others that this node stops, and holds nothing."""
        await self._tell(is_leaving=True)

    async def hear(self, beacon: Beacon) -> None:
        """Another node tells how it is doing."""
        self._follow()
        name = beacon.sender
        if beacon.is_leaving:
            self._sightings.gone(name)
            return
        if self._boots.get(name) != beacon.boot:
            self._boots[name] = beacon.boot
            self._sightings.differ(name)
        agrees = beacon.is_settled and beacon.roster == self._members.roster.digest
        if agrees and self._messenger.is_in_sync(name):
            self._sightings.agree(name, self._clock.elapsed_ms())
        self._holder.note_lines(name, beacon.flows)

    def _follow(self) -> None:
        roster = self._members.roster
        if roster is not self._roster:
            self._roster = roster
            others = [name for name in roster.names if name != self._members.me]
            self._sightings.follow(others, self._clock.elapsed_ms())

    async def _run(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(TICK_S)
            self._holder.forget_announcements()
            tick += 1
            if tick % _QUIET_TICKS == 0 or self._holder.lines():
                await self._tell(is_leaving=False)

    async def _tell(self, *, is_leaving: bool) -> None:
        self._follow()
        roster, me = self._members.roster, self._members.me
        is_settled = self._resync.is_settled
        beacon = Beacon(me, self._boot, roster.digest, is_settled, is_leaving, self._holder.lines())
        await asyncio.gather(*(self._send(name, beacon) for name in roster.names if name != me))

    async def _send(self, name: str, beacon: Beacon) -> None:
        with suppress(EverbellError):  # It is cut off or gone: then it hears nothing, and shall not.
            await self._members.ask(name, beacon)
