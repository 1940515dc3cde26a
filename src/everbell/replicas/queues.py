"""Queues of events that replicas hold: a worker asks any node, and gets due events of all nodes.

The replica that has its turn gives the lease, and tells the other replicas until when: they wait for that time, and
then for their turns. When a lease runs out, its attempt is lost and the event is due again, with the next replica in
line. If the node that gave the lease is gone, its workers learn that their leases are lost, and another replica offers
the events when the announced time is over.

A token ends with the name of the node that gave the lease. No log and no owner is needed to find it.
"""

from __future__ import annotations

from functools import partial

from everbell.channels.queue import Lease
from everbell.core.request import Ask, Handler
from everbell.engine.lease_race import LeasePlace, LeaseRace, ask_each
from everbell.engine.replica_requests import AskQueues
from everbell.engine.request_routes import ByToken
from everbell.engine.requests import LeaseEvents
from everbell.errors import NotOwner
from everbell.links.packing import answer_packed, pack_request, unpack_answer
from everbell.replicas.port import Members

_PREFIX = "r."
# The place of stored events. The name of a member is never empty.
_STORE = ""


def make_token(nonce: str, node: str) -> str:
    """The token of a lease that this node gives."""
    return f"{_PREFIX}{nonce}.{node}"


def lessor_in(token: str) -> str | None:
    """The node that gave a lease; None if the event is a stored one."""
    return token.removeprefix(_PREFIX).partition(".")[2] if token.startswith(_PREFIX) else None


class HeldQueues:
    """Answers requests about queues, of stored events and of those that replicas hold."""

    def __init__(self, members: Members, own: Ask, stored: Ask, *, has_store: bool) -> None:
        """`own` answers about the events that this node holds."""
        self._members = members
        self._own = own
        self._stored = stored
        self._has_store = has_store
        self._race = LeaseRace(self._by_token)

    def handlers(self) -> tuple[Handler, ...]:
        """The requests of workers."""
        return LeaseEvents.by(self._lease), ByToken.by(self._by_token)

    def peer_handlers(self) -> tuple[Handler, ...]:
        """The same requests, passed on by another node."""
        return (AskQueues.by(lambda request: answer_packed(request.request, self._own)),)

    async def _lease(self, request: LeaseEvents) -> list[Lease]:
        me = self._members.me
        # A node that drains is not in the roster, but workers may get the events that it still holds.
        names = sorted({me, *self._members.roster.names})
        places: list[LeasePlace] = [partial(self._lease_at, name) for name in names]
        if self._has_store:
            places.append(self._stored)
        return await self._race.run(places, request)

    async def _lease_at(self, name: str, request: LeaseEvents) -> list[Lease]:
        if name == self._members.me:
            return await self._own(request)
        return unpack_answer(request, await self._members.ask(name, AskQueues(pack_request(request))))

    async def _by_token(self, request: ByToken) -> list[str]:
        tokens: dict[str, list[str]] = {}
        for token in request.tokens_asked():
            lessor = lessor_in(token)
            tokens.setdefault(_STORE if lessor is None else lessor, []).append(token)
        return await ask_each(request, tokens, self._settle_at)

    async def _settle_at(self, name: str, request: ByToken) -> list[str]:
        if name == _STORE:
            return await self._stored(request)
        if name == self._members.me:
            return await self._own(request)
        try:
            return unpack_answer(request, await self._members.ask(name, AskQueues(pack_request(request))))
        except NotOwner:
            if name in self._members.roster.names:
                raise  # It may be back in a moment, and knows the leases then.
            return list(request.tokens_asked())
