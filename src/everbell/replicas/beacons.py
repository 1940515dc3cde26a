"""Beacons: every node tells the others every few seconds how it is doing.

From the beacons of the others a node learns

- which ends of events it can forget, and whether it has been refilled after its start (`Sightings`);
- which nodes have left the cluster with copies that they did not give away;
- which due events wait in line at another node, for a slow receiver: then it does not deliver them as well.
"""

from __future__ import annotations

import asyncio

from everbell.clock import Clock
from everbell.core.replicas.placement import Roster
from everbell.core.replicas.sightings import Sightings
from everbell.engine.replica_requests import Beacon, NodeBeacon
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
        self._sending: dict[str, asyncio.Task[None]] = {}
        # The nodes that did not take the last beacon: perhaps they run a version that does not know it.
        self._refusing: set[str] = set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-beacons")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, *self._sending.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Tell the others that this node stops, and holds nothing."""
        self._tell(is_leaving=True)
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def hear(self, beacon: NodeBeacon) -> None:
        """Another node tells how it is doing."""
        self.follow()
        self._sightings.learn_away(
            [each for each in beacon.away if each[0] != self._members.me], self._clock.elapsed_ms()
        )
        self._hear(beacon, is_met=beacon.knows_boot == self._boot)

    async def hear_previous(self, beacon: Beacon) -> None:
        """A node that sends no `NodeBeacon` tells how it is doing."""
        self.follow()
        self._hear(beacon, is_met=True)

    def _hear(self, beacon: Beacon | NodeBeacon, *, is_met: bool) -> None:
        """`is_met`: the sender has heard of this process, and not only of an earlier one of the same name."""
        name = beacon.sender
        if beacon.is_leaving:
            self._sightings.gone(name)
            return
        if (known := self._boots.get(name)) != beacon.boot:
            self._boots[name] = beacon.boot
            self._sightings.differ(name)
            if known is not None:
                # The messages that its earlier process still had to send are lost: this node may have to send them.
                self._resync.begin_again()
        agrees = is_met and beacon.is_settled and beacon.roster == self._members.roster.digest
        if agrees and self._resync.is_walked and self._messenger.is_in_sync(name):
            self._sightings.agree(name, self._clock.elapsed_ms())
        self._holder.turns.note_lines(name, beacon.flows)

    def follow(self) -> None:
        """Notice a change of the members."""
        self._sightings.give_up(self._clock.elapsed_ms())
        roster = self._members.roster
        if roster is not self._roster:
            self._roster = roster
            others = [name for name in roster.names if name != self._members.me]
            self._sightings.follow(others, self._clock.elapsed_ms())

    async def _run(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(TICK_S)
            self._holder.turns.forget_announcements()
            tick += 1
            if tick % _QUIET_TICKS == 0 or self._holder.lines():
                self._tell(is_leaving=False)

    def _tell(self, *, is_leaving: bool) -> None:
        """Send a beacon to every member. No member waits for another one, which may not answer."""
        self.follow()
        roster, me = self._members.roster, self._members.me
        is_settled, flows = self._resync.is_settled, self._holder.lines()
        beacon = Beacon(me, self._boot, roster.digest, is_settled, is_leaving, flows)
        loop = asyncio.get_running_loop()
        for name in roster.names:
            if name != me and (is_leaving or name not in self._sending):
                task = self._sending[name] = loop.create_task(self._send(name, beacon))
                task.add_done_callback(lambda task, name=name: self._sent(name, task))  # type: ignore[misc]

    def _sent(self, name: str, task: asyncio.Task[None]) -> None:
        if self._sending.get(name) is task:
            del self._sending[name]

    async def _send(self, name: str, beacon: Beacon) -> None:
        request: Beacon | NodeBeacon = beacon
        if name not in self._refusing:
            away = self._sightings.away_since(self._clock.elapsed_ms())
            request = NodeBeacon(
                beacon.sender,
                beacon.boot,
                beacon.roster,
                beacon.is_settled,
                beacon.is_leaving,
                beacon.flows,
                self._boots.get(name, 0),
                away,
            )
        # A node that does not take it gets the other one next time, and then this one again.
        self._refusing.discard(name)
        try:
            await self._members.ask(name, request)
        except EverbellError:  # It is cut off or gone: then it hears nothing, and shall not.
            if isinstance(request, NodeBeacon):
                self._refusing.add(name)
