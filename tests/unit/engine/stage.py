"""A stage for the engine: virtual time, a store that can be watched and spoiled, a receiver that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everbell.channels.port import Channel, Delivery
from everbell.core.event import Event, Repeat
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.engine.requests import Get
from everbell.engine.seen import Seen
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from everbell.errors import StoreError
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Change, Finish, Move, Refusal
from everbell.testing import VirtualClock, run_virtual
from tests.scheduling import schedule_seen

FAILED = Outcome("failed", "not now", 503)
REFUSED = Outcome("refused", "never")

Answer = Callable[[Delivery], Outcome | None]
"""The answer of a receiver to a delivery; None: no answer yet."""


class SteadyEntropy(SeededEntropy):
    """Ids as ever, and a jitter that a test chooses, so that times can be foretold."""

    def __init__(self, jitter: float = 0.0) -> None:
        super().__init__(7)
        self.jitter = lambda: jitter


class WatchedStore(MemoryStore):
    """Remembers every group that was applied, and fails or waits when a test says so."""

    def __init__(self, partitions: int = 8) -> None:
        super().__init__(partitions)
        self.applied: list[list[Change]] = []
        self.fault: StoreError | None = None
        self.fault_of: Callable[[Sequence[Change]], StoreError | None] = lambda changes: self.fault
        self.before_apply: Callable[[], Awaitable[object]] | None = None
        self.closed = False

    @property
    def _heads(self) -> Mapping[tuple[int, str, str], int]:
        return self._shelves.heads

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        if self.before_apply is not None:
            await self.before_apply()
        fault = self.fault_of(changes)
        if fault is not None:
            raise fault
        self.applied.append(list(changes))
        return await super().apply(changes, epochs)

    async def close(self) -> None:
        self.closed = True

    def transitions(self) -> set[tuple[str, str]]:
        """From which state to which state or end events went."""
        changes = [change for group in self.applied for change in group]
        moves = {(change.before.state, change.after.state) for change in changes if isinstance(change, Move)}
        ends = {(change.before.state, change.record.status) for change in changes if isinstance(change, Finish)}
        return {*moves, *ends}


@dataclass(frozen=True)
class Got:
    """One delivery, as the receiver saw it."""

    name: str
    attempt: int
    at: int
    event: Event


class Receiver:
    """A channel: notes each delivery with its time, and answers at once, later, or when the test says so."""

    holds = False
    together = 1

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.answer: Answer = lambda delivery: DELIVERED
        self.takes_s = 0.0
        self.got: list[Got] = []
        self.open: list[Delivery] = []
        """Begun and not answered."""
        self.most_open = 0
        self.closed = False

    @property
    def names(self) -> list[str]:
        return [got.name for got in self.got]

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.begin():
                event = delivery.event
                self.got.append(Got(event.payload.decode(), delivery.attempt, self._clock.now(), event))
                self.open.append(delivery)
                self.most_open = max(self.most_open, len(self.open))
                answer = self.answer(delivery)
                if answer is not None:
                    self._answer_later(delivery, answer)

    def settle(self, name: str, outcome: Outcome = DELIVERED) -> None:
        """Answer an open delivery."""
        delivery = next(delivery for delivery in self.open if delivery.event.payload == name.encode())
        self.open.remove(delivery)
        delivery.settle(outcome)

    async def close(self) -> None:
        self.closed = True

    def _answer_later(self, delivery: Delivery, answer: Outcome) -> None:
        def settle() -> None:
            if not self.closed:
                self.open.remove(delivery)
                delivery.settle(answer)

        if self.takes_s:
            asyncio.get_running_loop().call_later(self.takes_s, settle)
        else:
            settle()


@dataclass
class Stage:
    """A running engine with everything around it."""

    clock: VirtualClock
    store: WatchedStore
    receiver: Receiver
    engine: Engine
    tenants: Tenants
    broken: list[BaseException] = field(default_factory=list)

    @property
    def start_at(self) -> int:
        return self.clock.offset_ms

    async def schedule(self, name: str, in_ms: int = 0, *, tenant: str = "default", **fields: Any) -> Event:
        """Schedule one event that has to be accepted; its name is its payload."""
        seen = await self.ask(name, in_ms, tenant=tenant, **fields)
        assert isinstance(seen, Seen), seen
        assert isinstance(seen.event, Event)
        return seen.event

    async def ask(self, name: str, in_ms: int = 0, *, tenant: str = "default", **fields: Any) -> Seen | Exception:
        (result,) = await schedule_seen(self.engine.ask, tenant, [self.draft(name, in_ms, **fields)], self.store)
        return result

    def draft(
        self,
        name: str,
        in_ms: int = 0,
        *,
        key: str | None = None,
        id: str | None = None,
        to: str = "https://shop.example",
        repeat: Repeat | None = None,
        retry: RetryPolicy | None = None,
        expires_ms: int | None = None,
        tags: tuple[str, ...] = (),
    ) -> Draft:
        return Draft(
            self.clock.now() + in_ms,
            to,
            name.encode(),
            id,
            key,
            repeat=repeat,
            retry=retry,
            expires_ms=expires_ms,
            tags=tags,
        )

    def hold_writes(self) -> asyncio.Event:
        """Let no write end until the returned event is set."""
        go_on = asyncio.Event()
        self.store.before_apply = go_on.wait
        return go_on

    async def status(self, event: Event) -> str:
        return (await self.engine.ask(Get(event.tenant, event.id))).status

    async def pass_ms(self, duration_ms: int) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(duration_ms / 1_000)

    async def settled(self) -> None:
        """Let everything happen that needs no time, and write the outcomes that only wait for a larger group."""
        for _ in range(50):
            await asyncio.sleep(0)
            self.engine._outcomes.flush()

    async def restart(self, *, settings: EngineSettings | None = None) -> None:
        """Stop the engine and start another one on the same store."""
        await self.engine.stop()
        self.receiver.closed = False
        self.receiver.open.clear()
        self.engine = await _start(self, settings)


async def _start(
    stage: Stage, settings: EngineSettings | None, channels: Mapping[str, Channel] | None = None
) -> Engine:
    return await Engine.start(
        stage.store,
        channels or {"https": stage.receiver},
        stage.tenants,
        stage.clock,
        SteadyEntropy(),
        settings,
        stage.broken.append,
    )


def play(
    scene: Callable[[Stage], Coroutine[Any, Any, None]],
    *,
    tenants: Sequence[Tenant] = (),
    settings: EngineSettings | None = None,
    partitions: int = 8,
    jitter: float = 0.0,
) -> None:
    """Run a scene from a fresh engine to its end."""
    default = next((tenant for tenant in tenants if tenant.name == "default"), Tenant())

    async def main(clock: VirtualClock) -> None:
        store, receiver = WatchedStore(partitions), Receiver(clock)
        policies = Tenants(default, tuple(tenants))
        broken: list[BaseException] = []
        engine = await Engine.start(
            store, {"https": receiver}, policies, clock, SteadyEntropy(jitter), settings, broken.append
        )
        stage = Stage(clock, store, receiver, engine, policies, broken)
        await scene(stage)
        await stage.engine.stop()

    run_virtual(main)
