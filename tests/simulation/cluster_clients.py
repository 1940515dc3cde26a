"""Clients of a simulated cluster: they ask any node, and know only the answers.

A missing answer leaves the outcome unknown; a client that gave the event an id then repeats the request.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TypeVar

from everbell.core.amendment import Amendment
from everbell.core.event import Event, Repeat
from everbell.core.request import Request
from everbell.core.spec import Draft
from everbell.engine.requests import Amend, Cancel
from everbell.engine.seen import Seen
from everbell.errors import (
    Conflict,
    EverbellError,
    NotFound,
    NotOwner,
    Overloaded,
    Stopping,
    StoreError,
    StoreFull,
    StoreUnavailable,
    VersionMismatch,
)
from everbell.stores.memory.store import MemoryStore
from everbell.testing.virtual import START_AT
from tests.checker import Asked
from tests.scheduling import schedule_seen
from tests.simulation.cluster_checker import ClusterChecker
from tests.simulation.cluster_options import ClusterOptions
from tests.simulation.cluster_workers import QUEUE
from tests.simulation.network import Network
from tests.simulation.processes import ProcessLoop
from tests.simulation.rough_node import RoughNode

A = TypeVar("A")

REFUSALS = (NotOwner, Stopping, StoreFull, StoreUnavailable)
"""Errors that prove that nothing was done."""


class Clients:
    """All clients."""

    def __init__(
        self,
        loop: ProcessLoop,
        network: Network,
        nodes: dict[str, RoughNode],
        checker: ClusterChecker,
        options: ClusterOptions,
        dice: random.Random,
        store: MemoryStore,
    ) -> None:
        self.answers: dict[str, int] = {}
        """The number of answers of each kind of error."""
        self._loop = loop
        self._network = network
        self._nodes = nodes
        self._checker = checker
        self._options = options
        self._dice = dice
        self._store = store

    @property
    def now(self) -> int:
        return START_AT + int((self._loop.true_s + 1e-6) * 1_000)

    async def ask(self, request: Request[A]) -> A:
        """Ask a running node. Raises the node's error; `Overloaded` means that the outcome is unknown."""
        ready = [node for node in self._nodes.values() if node.answers]
        if not ready:
            raise Stopping("nobody is there")
        node = self._dice.choice(ready)
        router = node.router
        assert router is not None
        try:
            return await self._network.ask("client", node.title, lambda: node.process, lambda: router.ask(request))
        except EverbellError as failed:
            self._note(failed)
            raise

    async def one(self, index: int) -> None:
        """Schedule an event, and perhaps change or cancel it."""
        dice, options = self._dice, self._options
        tenant = "parking" if is_parking(index) else "default"
        key = f"{tenant}-{dice.randrange(options.keys)}" if dice.random() < options.keyed else None
        lead_ms = int(dice.choice((0, 50, 500, 5_000, 30_000)) * dice.uniform(0.5, 1.5))
        name = f"event-{index}"
        repeat = Repeat(700, 3) if dice.random() < options.repeats else None
        target = f"https://host{dice.randrange(options.targets)}.{dice.choice(('fine', 'slow', 'bad'))}"
        if key is None and dice.random() < options.queued:
            target = f"queue:{QUEUE}"
        client_id = name if dice.random() < 0.5 else None
        due_at = self.now + lead_ms
        due_at += -due_at % options.grain_ms
        draft = Draft(due_at, target, name.encode(), client_id, key, repeat=repeat)
        asked = Asked(name, due_at, name.encode(), key, index, 3 if repeat else 1, 700 if repeat else 0)
        self._checker.promises.ask(asked)
        seen = await self._schedule(tenant, draft, asked)
        if seen is None or not isinstance(seen.event, Event):
            return
        roll = dice.random()
        pause_s = dice.expovariate(1 / 5)
        if roll < options.cancels:
            await asyncio.sleep(pause_s)
            await self._cancel(tenant, seen.event, asked)
        elif roll < options.cancels + options.moves:
            await asyncio.sleep(pause_s)
            await self._move(tenant, seen.event, asked)
        elif roll < options.cancels + options.moves + options.races:
            await asyncio.sleep(pause_s)
            await asyncio.gather(*(self._touch(tenant, seen.event, asked, hand) for hand in ("left", "right")))

    async def _schedule(self, tenant: str, draft: Draft, asked: Asked) -> Seen | None:
        is_refused = True
        for _ in range(3):
            try:
                (result,) = await schedule_seen(self.ask, tenant, [draft], self._store)
            except EverbellError as failed:
                result = failed
            if isinstance(result, Seen):
                # In the worst case the owner's clock, and the next owner's clock, are this far ahead.
                asked.acknowledged_at = self.now + 3 * self._options.skew_ms + 5_000
                if isinstance(result.event, Event):
                    asked.index = result.event.sequence
                return result
            is_refused = is_refused and isinstance(result, REFUSALS)
            if draft.id is None and not is_refused:
                return None  # The event may be stored, and a retry would store it twice.
            await asyncio.sleep(self._dice.uniform(0, 2))
        asked.refused = is_refused
        return None

    async def _cancel(self, tenant: str, event: Event, asked: Asked) -> None:
        asked.cancel_unknown = True
        try:
            await self.ask(Cancel(tenant, event.id))
        except (Conflict, NotFound, *REFUSALS):
            asked.cancel_unknown = False
        except (Overloaded, StoreError):
            pass
        else:
            asked.cancelled_at = self.now - START_AT

    async def _move(self, tenant: str, event: Event, asked: Asked) -> None:
        if asked.every_ms:
            return
        due_at = self.now + self._dice.randrange(10_000)
        due_at += -due_at % self._options.grain_ms
        asked.moved = True
        asked.due_at = min(asked.due_at, due_at)
        with suppress(Conflict, NotFound, Overloaded, StoreError):
            await self.ask(Amend(tenant, event.id, Amendment(due_at=due_at), None))

    async def _touch(self, tenant: str, event: Event, asked: Asked, hand: str) -> None:
        """Change a field that does not affect the delivery; of two callers that name one version, one may succeed."""
        version = event.version
        try:
            await self.ask(Amend(tenant, event.id, Amendment(tags=(hand,)), version))
        except (Conflict, NotFound, VersionMismatch, Overloaded, StoreError):
            return
        self._checker.versions[asked.id, version] += 1

    def _note(self, failed: EverbellError) -> None:
        kind = type(failed).__name__
        self.answers[kind] = self.answers.get(kind, 0) + 1


def is_parking(index: int) -> bool:
    """Whether an event belongs to the tenant whose dead events do not block their keys."""
    return index % 3 == 0
