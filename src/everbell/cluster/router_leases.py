"""Queues of the whole cluster: a worker asks any node, and gets due events of all nodes.

Each node holds the due events of its own partitions. A token begins with its partition, so an acknowledgement finds
the node that gave the lease while that node owns the partition. After a move the lease is lost, and the event is
leased again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from everbell.channels.queue import Lease, partition_in
from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.core.request import Ask, Handler
from everbell.engine.request_routes import ByToken
from everbell.engine.requests import GiveBack, LeaseEvents
from everbell.errors import EverbellError, NotOwner

# How long another node may wait in one request. A request cannot be cancelled, so it is short and is repeated.
_SLICE_MS = 1_000


class LeaseRouter:
    """Answers requests about queues for the whole cluster."""

    def __init__(self, node: ClusterNode, own: Ask, peers: Peers) -> None:
        self._node = node
        self._own = own
        self._peers = peers
        self._turn = 0
        self._late: set[asyncio.Task[None]] = set()

    def handlers(self) -> tuple[Handler, ...]:
        """The requests about queues."""
        return LeaseEvents.by(self._lease), ByToken.by(self._by_token)

    async def _lease(self, request: LeaseEvents) -> list[Lease]:
        """Nodes take turns in being asked first. When none has a due event, the first that gets one answers."""
        others = self._others()
        if not others:
            return await self._own(request)
        self._turn += 1
        owners = [self._node.me, *others]
        start = self._turn % len(owners)
        for owner in owners[start:] + owners[:start]:
            if leases := await self._first([owner], replace(request, wait_ms=0)):
                return leases
        return await self._first(owners, request)

    def _others(self) -> list[str]:
        """The other nodes that own partitions."""
        value, me = self._node.value, self._node.me
        if len(value.members) < 2:
            return []
        return sorted({part.owner for part in value.partitions} - {me, ""})

    async def _ask(self, owner: str, request: LeaseEvents, over: asyncio.Event) -> list[Lease]:
        """Ask one node until it gives leases, the time is over, or another node gave leases."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_ms / 1_000
        while True:
            left_ms = max(int((until_s - loop.time()) * 1_000), 0)
            slice_ms = min(left_ms, _SLICE_MS)
            try:
                leases = await (await self._reach(owner))(replace(request, wait_ms=slice_ms))
            except EverbellError:
                # The node is stopping or gone: the other nodes answer.
                leases = []
                await asyncio.sleep(slice_ms / 1_000)
            if leases or left_ms <= slice_ms or over.is_set():
                return leases

    async def _first(self, owners: list[str], request: LeaseEvents) -> list[Lease]:
        """The first answer with leases. Leases of later answers are given back."""
        over = asyncio.Event()
        asked = [asyncio.ensure_future(self._ask(owner, request, over)) for owner in owners]
        surplus = list(asked)
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # In the order of the requests, so that runs are reproducible.
                for question in [each for each in asked if each in done]:
                    surplus.remove(question)
                    if leases := question.result():
                        return leases
            return []
        finally:
            over.set()
            for question in surplus:
                self._give_back_late(request, question)

    def _give_back_late(self, request: LeaseEvents, question: asyncio.Future[list[Lease]]) -> None:
        async def give_back() -> None:
            leases = await question
            if leases:
                with suppress(EverbellError):  # Otherwise they expire.
                    await self._by_token(GiveBack(request.tenant, request.queue, [lease.token for lease in leases]))

        task = asyncio.get_running_loop().create_task(give_back())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _by_token(self, request: ByToken) -> list[str]:
        """Ask every owner about its own tokens, and return the lost ones.

        Tokens of an owner that gives no answer count as lost, because the requests to other owners cannot be undone,
        and a worker notices when it gets an event again. If no owner answers, this raises the first error.
        """
        value = self._node.value
        found: dict[str, list[str]] = {}
        lost: list[str] = []
        for token in request.tokens_asked():
            partition = partition_in(token)
            if partition is None or not 0 <= partition < len(value.partitions) or not value.partitions[partition].owner:
                lost.append(token)
            else:
                found.setdefault(value.partitions[partition].owner, []).append(token)

        async def ask_one(owner: str, some: Sequence[str]) -> list[str] | EverbellError:
            try:
                return await (await self._reach(owner))(request.only(some))
            except EverbellError as failed:
                return failed.as_value()

        answers = await asyncio.gather(*(ask_one(owner, some) for owner, some in found.items()))
        failures = [answer for answer in answers if isinstance(answer, EverbellError)]
        if failures and len(failures) == len(answers):
            raise failures[0]
        for some, answer in zip(found.values(), answers, strict=True):
            lost += some if isinstance(answer, EverbellError) else answer
        return lost

    async def _reach(self, owner: str) -> Ask:
        if owner == self._node.me:
            return self._own
        member = self._node.value.members.get(owner)
        if member is None:
            raise NotOwner("the node that gave the lease is gone")
        return (await self._peers.reach(member)).ask
