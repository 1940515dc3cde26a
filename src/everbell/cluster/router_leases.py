"""Queues of the whole cluster: a worker may ask any node, and gets what is due on any of them.

Each node holds the due events of its own partitions. A token begins with its partition, so an acknowledgement finds
the node that gave the lease, as long as that one owns the partition: after a move the lease is lost, and the event
comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from everbell.channels.queue import Lease, partition_in
from everbell.cluster.node import ClusterNode
from everbell.cluster.port import Peers
from everbell.core.retry import Outcome
from everbell.engine.leases import Leases
from everbell.engine.port import LeasesPort
from everbell.errors import EverbellError, NotOwner

_SLICE_MS = 1_000
"""How long one question to another node waits. Nobody can take a question back, so it is asked again instead."""


class RoutedLeases:
    """`LeasesPort` of the whole cluster."""

    def __init__(self, node: ClusterNode, near: Leases, peers: Peers) -> None:
        self._node = node
        self._near = near
        self._peers = peers
        self._turn = 0
        self._late: set[asyncio.Task[None]] = set()

    async def lease(self, tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None) -> list[Lease]:
        """See the port. Nodes take turns in being asked first; when none has anything, whoever has something first."""
        others = self._others()
        if not others:
            return await self._near.lease(tenant, queue, limit, wait_ms, lease_ms)
        self._turn += 1
        owners = [self._node.me, *others]
        start = self._turn % len(owners)
        for owner in owners[start:] + owners[:start]:
            if leases := await self._first([owner], tenant, queue, limit, 0, lease_ms):
                return leases
        return await self._first(owners, tenant, queue, limit, wait_ms, lease_ms)

    async def acknowledge(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        """See the port."""
        return await self._by_owner(tokens, lambda there, some: there.acknowledge(tenant, queue, some))

    async def fail(self, tenant: str, queue: str, failures: Mapping[str, Outcome]) -> list[str]:
        """See the port."""
        return await self._by_owner(
            failures, lambda there, some: there.fail(tenant, queue, {token: failures[token] for token in some})
        )

    async def give_back(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        """See the port."""
        return await self._by_owner(tokens, lambda there, some: there.give_back(tenant, queue, some))

    async def extend(self, tenant: str, queue: str, tokens: Sequence[str], lease_ms: int) -> list[str]:
        """See the port."""
        return await self._by_owner(tokens, lambda there, some: there.extend(tenant, queue, some, lease_ms))

    def _others(self) -> list[str]:
        """The other nodes that own something."""
        value, me = self._node.value, self._node.me
        if len(value.members) < 2:
            return []
        return sorted({part.owner for part in value.partitions} - {me, ""})

    async def _ask(
        self, owner: str, tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None, over: asyncio.Event
    ) -> list[Lease]:
        """Ask one node until it has something, the time has passed, or somebody else had something."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_ms / 1_000
        while True:
            left_ms = max(int((until_s - loop.time()) * 1_000), 0)
            slice_ms = min(left_ms, _SLICE_MS)
            try:
                leases = await (await self._leases(owner)).lease(tenant, queue, limit, slice_ms, lease_ms)
            except EverbellError:
                # It is gone, or about to go: the others have answers.
                leases = []
                await asyncio.sleep(slice_ms / 1_000)
            if leases or left_ms <= slice_ms or over.is_set():
                return leases

    async def _first(
        self, owners: list[str], tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None
    ) -> list[Lease]:
        """The first answer with something in it. Whoever answers besides gets its events back."""
        over = asyncio.Event()
        asked = [
            asyncio.ensure_future(self._ask(owner, tenant, queue, limit, wait_ms, lease_ms, over)) for owner in owners
        ]
        surplus = list(asked)
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # In the order in which they were asked, so that the same happens in every run.
                for question in [each for each in asked if each in done]:
                    surplus.remove(question)
                    if leases := question.result():
                        return leases
            return []
        finally:
            over.set()
            for question in surplus:
                self._give_back_late(tenant, queue, question)

    def _give_back_late(self, tenant: str, queue: str, question: asyncio.Future[list[Lease]]) -> None:
        async def give_back() -> None:
            leases = await question
            if leases:
                with suppress(EverbellError):  # Then they run out.
                    await self.give_back(tenant, queue, [lease.token for lease in leases])

        task = asyncio.get_running_loop().create_task(give_back())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _by_owner(
        self, tokens: Iterable[str], ask: Callable[[LeasesPort, list[str]], Awaitable[list[str]]]
    ) -> list[str]:
        """Ask every owner about its own. Tokens of one that cannot be asked count as lost, unless there are no others:
        what was done for some cannot be taken back, and what comes again can be told.
        """
        value = self._node.value
        found: dict[str, list[str]] = {}
        lost: list[str] = []
        for token in tokens:
            partition = partition_in(token)
            if partition is None or not 0 <= partition < len(value.partitions) or not value.partitions[partition].owner:
                lost.append(token)
            else:
                found.setdefault(value.partitions[partition].owner, []).append(token)

        async def ask_one(owner: str, some: list[str]) -> list[str] | EverbellError:
            try:
                return await ask(await self._leases(owner), some)
            except EverbellError as failed:
                return failed.as_value()

        answers = await asyncio.gather(*(ask_one(owner, some) for owner, some in found.items()))
        failures = [answer for answer in answers if isinstance(answer, EverbellError)]
        if failures and len(failures) == len(answers):
            raise failures[0]
        for some, answer in zip(found.values(), answers, strict=True):
            lost += some if isinstance(answer, EverbellError) else answer
        return lost

    async def _leases(self, owner: str) -> LeasesPort:
        if owner == self._node.me:
            return self._near
        member = self._node.value.members.get(owner)
        if member is None:
            raise NotOwner("the node that gave the lease is gone")
        return (await self._peers.reach(member)).leases
