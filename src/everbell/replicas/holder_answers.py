"""Answers of one holder to another node, which asks for a user: the event as it is here, or a change of it."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.replicas.copies import Copy, for_wire
from everbell.core.replicas.ids import filter_in, matches
from everbell.core.replicas.sightings import Sightings
from everbell.core.request import Request
from everbell.engine.replica_requests import ChangeCopies, CopyName, LookForCopy
from everbell.engine.request_routes import ByEventId
from everbell.engine.requests import Amend, Replace, Ring, TryOut
from everbell.engine.seen import Seen
from everbell.engine.view_requests import Explain
from everbell.errors import Conflict, EverbellError, NotFound, Overloaded
from everbell.replicas.beacons import Beacons
from everbell.replicas.holder import Holder
from everbell.replicas.messenger import Messenger
from everbell.replicas.port import Members
from everbell.replicas.seeing import seen_of


class HolderAnswers:
    """Reads and changes the copies of this node, and sends changes to all nodes that may hold the event."""

    def __init__(
        self,
        members: Members,
        holder: Holder,
        sightings: Sightings,
        beacons: Beacons,
        messenger: Messenger,
        clock: Clock,
    ) -> None:
        self._members = members
        self._holder = holder
        self._sightings = sightings
        self._beacons = beacons
        self._messenger = messenger
        self._clock = clock
        self._started_ms = clock.elapsed_ms()
        self._is_refilled = False

    async def look(self, request: LookForCopy) -> Seen | None:
        copy = self._holder.store.copies.get((request.tenant, request.id))
        if copy is None:
            if doubt := self._doubt():
                raise Conflict(doubt)
            return None
        is_delivering = copy.event is not None and self._holder.is_in_flight(copy.event)
        away = self._sightings.away
        return seen_of(for_wire(copy), (self._members.me,), away, is_delivering=is_delivering)

    def is_refilled(self) -> bool:
        """Whether all other members have given this node its copies since it started."""
        if not self._is_refilled:
            self._is_refilled = self._members.is_inside and self._sightings.members_seen_since(self._started_ms)
        return self._is_refilled

    def _doubt(self) -> str:
        """Why this node cannot say that an event does not exist; empty if it can."""
        self._beacons.follow()
        if not self.is_refilled():
            return f"{self._members.me} started a moment ago, and is being refilled"
        if not self._members.is_inside:
            return f"{self._members.me} cannot reach the log, and may not know all members"
        doubtful = self._sightings.doubtful(self._clock.elapsed_ms())
        return f"{', '.join(doubtful)} left the cluster, and may hold it" if doubtful else ""

    async def answer(self, request: Request[Any]) -> Any:
        """Make a change that a user asks for, send it to the other replicas, and report which of them have it."""
        assert isinstance(request, (ByEventId, TryOut)), "only requests about one event are passed on"
        name: CopyName = request.tenant, request.id
        copy = self._holder.store.copies.get(name)
        if copy is None:  # It did a moment ago.
            raise Overloaded(f"this node no longer holds the event {request.id!r}; try again")
        if not self._holder.turns.has_joined:
            raise Overloaded("this node has not joined the cluster yet, and does not know the other replicas")
        if isinstance(request, (TryOut, Explain)):
            return await self._holder.engine.ask(request)
        if copy.event is None:
            assert copy.record is not None, "a copy has an event, or the record of its end"
            raise Conflict(f"the event is already {copy.record.status}")
        if isinstance(request, (Amend, Replace, Ring)) and self._holder.turns.is_busy_elsewhere(copy):
            raise Conflict("the event is being delivered at this moment; try again when the attempt is over")
        try:
            seen = await self._holder.engine.ask(request)
        except NotFound:
            raise Overloaded(f"this node no longer holds the event {request.id!r}; try again") from None
        holders, unreached = await self._spread(name)
        return replace(seen, holders=holders, replicas=copy.replication.count, unreached=unreached)

    async def _spread(self, name: CopyName) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Send a changed copy to all nodes that may hold the event. Returns the replicas that have confirmed it, and
        the nodes that may have an earlier copy.
        """
        copy = self._holder.store.copies[name]
        roster, me, bits = self._members.roster, self._members.me, filter_in(name[1])
        self._beacons.follow()
        replicas = self._holder.replicas_of(copy)
        # An id of a client does not tell which other members may still have a copy: a cancel goes to all of them. So
        # does every change while members are still giving copies away.
        is_for_all = not self._sightings.have_agreed() or (bits is None and copy.event is None)
        former = [each for each in roster.names if is_for_all or (bits is not None and matches(bits, each))]
        others = [each for each in dict.fromkeys((*replicas, *former)) if each != me]
        answers = await asyncio.gather(*(self._send_change(each, copy, roster.digest) for each in others))
        have = {other for other, has in zip(others, answers, strict=True) if has} | {me}
        unreached = {*others, *self._sightings.away} - have
        return tuple(each for each in replicas if each in have) or (me,), tuple(sorted(unreached))

    async def _send_change(self, other: str, copy: Copy, roster: int) -> bool:
        """Returns whether the other node has confirmed the change."""
        try:
            return list(await self._members.ask(other, ChangeCopies([for_wire(copy)], roster))) == [True]
        except Overloaded:
            # It may run a version that does not know this request.
            self._messenger.tell(lambda copy: (other,), [copy])
        except EverbellError:
            self._messenger.behind[other] = None
        return False
