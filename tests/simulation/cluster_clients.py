"""Clients of a simulated cluster: they ask any node, and know only what they were told.

An answer that does not come leaves the outcome unknown; then whoever gave the event an id asks again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from everbell.cluster.router import RoutedOperations
from everbell.core.event import Event, Repeat
from everbell.core.spec import Draft
from everbell.engine.port import Seen
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
from everbell.testing.virtual import START_AT
from tests.checker import Asked
from tests.simulation.cluster_checker import ClusterChecker
from tests.simulation.cluster_options import ClusterOptions
from tests.simulation.cluster_workers import QUEUE
from tests.simulation.network import Network
from tests.simulation.processes import ProcessLoop
from tests.simulation.rough_node import RoughNode

T = TypeVar("T")

REFUSALS = (NotOwner, Stopping, StoreFull, StoreUnavailable)
"""What says for sure that nothing was done."""


class Clients:
    """All of them."""

    def __init__(
        self,
        loop: ProcessLoop,
        network: Network,
        nodes: dict[str, RoughNode],
        checker: ClusterChecker,
        options: ClusterOptions,
        dice: random.Random,
    ) -> None:
        self.answers: dict[str, int] = {}
        """How often each kind of error was the answer."""
        self._loop = loop
        self._network = network
        self._nodes = nodes
        self._checker = checker
        self._options = options
        self._dice = dice

    @property
    def now(self) -> int:
        return START_AT + int((self._loop.true_s + 1e-6) * 1_000)

    async def ask(self, work: Callable[[RoutedOperations], Awaitable[T]]) -> T:
        """Ask some node that runs. Raises what it answers; `Overloaded` means that the outcome is unknown."""
        ready = [node for node in self._nodes.values() if node.answers]
        if not ready:
            raise Stopping("nobody is there")
        node = self._dice.choice(ready)
        operations = node.operations
        assert operations is not None
        try:
            return await self._network.ask("client", node.title, lambda: node.process, lambda: work(operations))
        except EverbellError as failed:
            self._note(failed)
            raise

    async def one(self, index: int) -> None:
        """Schedule an event, and perhaps change one's mind."""
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
                (result,) = await self.ask(lambda operations: operations.schedule(tenant, [draft]))
            except EverbellError as failed:
                result = failed
            if isinstance(result, Seen):
                # In the worst of cases the owner's clock, and that of the next owner, are so far ahead.
                asked.acknowledged_at = self.now + 3 * self._options.skew_ms + 5_000
                if isinstance(result.event, Event):
                    asked.index = result.event.sequence
                return result
            is_refused = is_refused and isinstance(result, REFUSALS)
            if draft.id is None and not is_refused:
                return None  # It may be there, and would be there twice.
            await asyncio.sleep(self._dice.uniform(0, 2))
        asked.refused = is_refused
        return None

    async def _cancel(self, tenant: str, event: Event, asked: Asked) -> None:
        asked.cancel_unknown = True
        try:
            await self.ask(lambda operations: operations.cancel(tenant, event.id))
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
            await self.ask(lambda operations: operations.change(tenant, event.id, {"due_at": due_at}, None))

    async def _touch(self, tenant: str, event: Event, asked: Asked, hand: str) -> None:
        """Change something that changes nothing about the delivery; of two who name one version, one may."""
        version = event.version
        try:
            await self.ask(lambda operations: operations.change(tenant, event.id, {"tags": (hand,)}, version))
        except (Conflict, NotFound, VersionMismatch, Overloaded, StoreError):
            return
        self._checker.versions[asked.id, version] += 1

    def _note(self, failed: EverbellError) -> None:
        kind = type(failed).__name__
        self.answers[kind] = self.answers.get(kind, 0) + 1


def is_parking(index: int) -> bool:
    """Whether an event is of the tenant whose dead events let their keys go on."""
    return index % 3 == 0
