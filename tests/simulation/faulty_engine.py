"""An engine that meets everything that can happen to it once, and an unexpected exception at one point.

The engine may end. Then the scene starts another one on the same store, as an operator or systemd would. In any case
all callers get an answer, and in the end the checker judges all promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from everbell.channels.port import Delivery
from everbell.core.amendment import Amendment
from everbell.core.event import Repeat
from everbell.core.pause import Pause
from everbell.core.request import Request
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.core.tenant import BreakerPolicy, Tenant, Tenants
from everbell.core.time import HOUR_MS
from everbell.engine.engine import Engine
from everbell.engine.entry import Entry
from everbell.engine.requests import (
    Acknowledge,
    Amend,
    Cancel,
    CancelMatching,
    CountEvents,
    ExtendLeases,
    FailLeases,
    Find,
    Get,
    GetForecast,
    GetLine,
    GiveBack,
    LeaseEvents,
    Redrive,
    RedriveMatching,
    Replace,
    Ring,
    Schedule,
    TryOut,
)
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from everbell.errors import EverbellError
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Change, Filter, Refusal
from everbell.testing import VirtualClock
from tests.checker import Asked, Checker, Seen
from tests.simulation.fault_points import Injected
from tests.simulation.world import crash

A = TypeVar("A")

ANSWER_S = 120
"""A caller that has no answer after this time never gets one."""
DRAIN_S = 3_600
SHOP = Tenant("shop", retry=RetryPolicy(3, 100, 1_000), in_flight=2, breaker=BreakerPolicy(2, 1_000))
PARK = Tenant(
    "park", retry=RetryPolicy(2, 100, 1_000), on_dead="park", rate=50.0, dead_letter_to="https://letters.example"
)
TENANTS = ("shop", "park")
SETTINGS = EngineSettings(memory_bytes=12_000, lookahead_ms=1_000, page_events=3, in_flight=8, drain_s=2.0)


class Store(MemoryStore):
    """Lets other tasks run before and after each write."""

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        await asyncio.sleep(0.001)
        refused = await super().apply(changes, epochs)
        await asyncio.sleep(0.001)
        return refused


class Receiver:
    """Fails the first attempts of events that say so in their name."""

    holds = False
    together = 1

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._open: dict[Delivery, int] = {}

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries[0].desk.begin_all(deliveries):
            self._open[delivery] = self._scene.clock.now()
            asyncio.get_running_loop().call_later(0.02, self._end, delivery)

    async def close(self) -> None:
        for delivery, began_at in self._open.items():
            self._scene.saw(delivery, began_at, is_accepted=True, is_lost=True)
        self._open.clear()

    def _end(self, delivery: Delivery) -> None:
        began_at = self._open.pop(delivery, None)
        if began_at is None:
            return
        name = delivery.event.payload.decode()
        outcome = DELIVERED
        if not self._scene.is_healed and name.startswith("failing") and delivery.attempt < 3:
            outcome = Outcome("failed", "not now", 503)
        if not self._scene.is_healed and name.startswith("refused"):
            outcome = Outcome("refused", "no", 410)
        self._scene.saw(delivery, began_at, is_accepted=outcome is DELIVERED)
        delivery.settle(outcome)


class Scene:
    """The engine, its users, and the notes about both."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.is_healed = False
        self.wrong: list[str] = []
        self.ends = 0
        self._checker = Checker()
        self._store = Store(partitions=2)
        self._entropy = SeededEntropy(7)
        self._engine: Engine | None = None
        self._receiver = Receiver(self)
        self._broken: list[BaseException] = []
        self._ids: dict[str, tuple[str, str]] = {}
        self._order = 0

    def saw(self, delivery: Delivery, began_at: int, *, is_accepted: bool, is_lost: bool = False) -> None:
        """Note a delivery."""
        event = delivery.event
        name = event.payload.decode()
        if event.to.startswith("https://letters") or not isinstance(delivery, Entry):
            return  # A dead letter, or a trial.
        now = self.clock.now()
        self._checker.see(
            Seen(
                name,
                event.occurrence,
                delivery.attempt,
                delivery.epoch,
                event.payload,
                began_at,
                now,
                is_accepted,
                is_lost,
            )
        )

    async def play(self) -> None:
        """Everything once, then the drain."""
        await self._boot()
        await self._schedule_all()
        await self._change_some()
        await self._work_in_queues()
        await self._pause_and_hand_over()
        await self._look()
        await asyncio.sleep(6)
        await self._drain()
        self.wrong += self._checker.violations()

    async def _schedule_all(self) -> None:
        for number in range(3):
            await self.schedule(f"lined-{number}", 300 + number, key="k")
        await self.schedule("failing-key", 200, key="f")
        await self.schedule("follower", 210, key="f")
        await self.schedule("refused", 100, key="r")
        await self.schedule("refused-park", 100, tenant="park", to="https://park.example")
        await self.schedule("soon", 50)
        await self.schedule("named", 400, id="my-id")
        await self.schedule("often", 300, repeat=Repeat(300, 3))
        await self.schedule("apart", 300, repeat=Repeat(300, 2, overlap="allow"))
        await self.schedule("expiring", 100, expires_ms=24 * HOUR_MS)
        await self.schedule("far", 4_000)
        await self.schedule("far-key", 4_000, key="k")
        for number in range(10):  # More than memory has room for.
            await self.schedule(f"many-{number}", 900, tenant="park", to="https://park.example")
        await self._schedule_simple()

    async def _change_some(self) -> None:
        await self.schedule("moved", 3_000)
        await self.schedule("cancelled", 3_000)
        await self.schedule("cancelled-key", 3_000, key="k")
        await self.schedule("replaced", 3_000, id="other-id")
        await self.schedule("rung", 3_000)
        await self.schedule("flying", 0)
        await self.schedule("tagged", 700, tags=("old",))
        await self._change(
            "moved", lambda tenant, id: Amend(tenant, id, Amendment(due_at=self.clock.now() + 500), None)
        )
        await self._cancel("cancelled")
        await self._cancel("cancelled-key")
        asked = self._checker.asked["replaced"]
        draft = Draft(asked.due_at, "https://shop.example", b"replaced", "other-id", tags=("new",))
        await self._change("replaced", lambda tenant, id: Replace(tenant, id, draft, None))
        await self._change("rung", Ring, moves=True)
        await self._cancel("flying")
        await self._change("tagged", lambda tenant, id: Amend(tenant, id, Amendment(tags=("new",)), None))
        await self._ask(CancelMatching(Filter("shop", tag="missing")))
        await asyncio.sleep(1)
        await self._change("refused", Redrive)

    async def _work_in_queues(self) -> None:
        for number in range(5):
            await self.schedule(f"job-{number}", 10, to="queue:jobs")
        await asyncio.sleep(0.1)
        tokens = await self._lease(4)
        if len(tokens) == 4:
            await self._ask(Acknowledge("shop", "jobs", tokens[:1]))
            await self._ask(FailLeases("shop", "jobs", {tokens[1]: Outcome("failed", "not now")}))
            await self._ask(GiveBack("shop", "jobs", tokens[2:3]))
            await self._ask(ExtendLeases("shop", "jobs", tokens[3:], 500))
        await asyncio.sleep(1)
        await self._lease(1)

    async def _pause_and_hand_over(self) -> None:
        await self.schedule("held", 100)
        await self.schedule("held-key", 100, key="k")
        now = self.clock.now()
        await self._pause(Pause("shop", "key", "k", now, "me", until_at=now + 400))
        await self._pause(Pause("shop", "tenant", "", now, "me", until_at=now + 700))
        await self.schedule("leaving", 100, key="k")
        await self._do(lambda engine: engine.release([0], 0.5), halts=True)
        await asyncio.sleep(0.3)
        await self._do(lambda engine: engine.take({0: self._store.epoch + 1}), halts=True)
        await self._tell(lambda engine: engine.adopt("shop"))
        await self._tell(lambda engine: engine.drop([1]))
        self._checker.restarts += 2  # A hand-over may repeat a delivery, too.
        await self._do(lambda engine: engine.take({1: self._store.epoch + 1}, quiet_ms=50), halts=True)

    async def _pause(self, pause: Pause) -> None:
        await self._tell(lambda engine: engine.pauses.follow((pause,)))
        await asyncio.sleep(0.2)
        await self._tell(lambda engine: engine.pauses.follow(()))

    async def _look(self) -> None:
        tenant, event_id = self._ids.get("far", ("shop", "missing"))
        await self._ask(Get(tenant, event_id))
        await self._ask(TryOut(tenant, self._ids.get("moved", ("", "missing"))[1]))
        await self._ask(GetLine("shop", "k"))
        await self._ask(Find(Filter("shop"), None, 10))
        await self._ask(CountEvents())
        await self._ask(GetForecast("shop", 1_000, 5))
        await self._tell(lambda engine: engine.overdue_ms())

    async def _drain(self) -> None:
        """All events must be delivered, by this engine or by the next."""
        self.is_healed = True
        end_at = self.clock.now() + DRAIN_S * 1_000
        while self.clock.now() < end_at:
            await asyncio.sleep(20)
            for tenant in TENANTS:
                await self._ask(RedriveMatching(Filter(tenant, "dead")))
            while tokens := await self._lease(10):
                await self._ask(Acknowledge("shop", "jobs", tokens))
            counts = await self._store.counts()
            if all(count.pending == 0 and count.dead == 0 for count in counts.values()):
                break
        else:
            self.wrong.append(f"stuck: {await self._store.counts()} after an hour")
        await asyncio.sleep(1)
        engine = await self._alive()
        budget = engine.memory.budget
        if engine.memory.entries or engine.dispatcher.in_flight or budget.free_bytes != budget.total_bytes:
            self.wrong.append("leak: events are left in memory")
        with suppress(Injected):  # The process ends anyway, and shows the exception.
            await engine.stop()

    # What users and operators do. A fault may be their answer.

    async def schedule(
        self, name: str, in_ms: int, tenant: str = "shop", to: str = "https://shop.example", **fields: Any
    ) -> None:
        """Schedule an event."""
        draft = Draft(self.clock.now() + in_ms, to, name.encode(), **fields)
        asked = self._note(name, draft, tenant)
        results = await self._ask(Schedule(tenant, [draft]))
        self._noted(asked, None if results is None else results[0])

    async def _schedule_simple(self) -> None:
        names, due_at = [f"simple-{number}" for number in range(4)], self.clock.now() + 200
        drafts = [Draft(due_at, "https://shop.example", name.encode()) for name in names]
        asked = [self._note(name, draft, "shop") for name, draft in zip(names, drafts, strict=True)]
        batch = SimpleBatch([due_at] * 4, ["https://shop.example"] * 4, [name.encode() for name in names])
        results = await self._ask(Schedule("shop", batch))
        for each, result in zip(asked, [None] * 4 if results is None else results, strict=True):
            self._noted(each, result)

    def _note(self, name: str, draft: Draft, tenant: str) -> Asked:
        self._order += 1
        repeat = draft.repeat
        occurrences, every_ms = (1, 0) if repeat is None else (repeat.count or 1, repeat.every_ms)
        key = None if draft.key is None else f"{tenant}/{draft.key}"
        asked = Asked(name, draft.due_at, draft.payload, key, self._order, occurrences, every_ms)
        asked.tenant, asked.target = tenant, draft.to
        # A failure of the engine may park an event, and a parked event does not keep its place.
        asked.moved = tenant == "park"
        self._checker.ask(asked)
        return asked

    def _noted(self, asked: Asked, result: object) -> None:
        if isinstance(result, str):
            asked.acknowledged_at = self.clock.now()
            self._ids[asked.id] = asked.tenant, result

    async def _change(self, name: str, request: Callable[[str, str], Request[Any]], *, moves: bool = True) -> Any:
        if name not in self._ids:
            return None
        asked = self._checker.asked[name]
        if moves:
            asked.moved = True
            asked.due_at = min(asked.due_at, self.clock.now())
        return await self._ask(request(*self._ids[name]))

    async def _cancel(self, name: str) -> None:
        asked = self._checker.asked[name]
        asked.cancel_unknown = True
        if await self._change(name, Cancel, moves=False) is not None:
            asked.cancelled_at = self.clock.now()

    async def _lease(self, limit: int) -> list[str]:
        leases = await self._ask(LeaseEvents("shop", "jobs", limit, 100, 400))
        now = self.clock.now()
        for lease in leases or ():
            got = lease.occurrence
            # The worker does its work at once. Whether the server learns that is unknown.
            self._checker.see(Seen(got.raw.decode(), 1, got.attempt, got.epoch, got.raw, now, now, True, True))
        return [lease.token for lease in leases or ()]

    async def _ask(self, request: Request[A]) -> A | None:
        return await self._do(lambda engine: engine.ask(request))

    async def _tell(self, tell: Callable[[Engine], object]) -> None:
        async def told(engine: Engine) -> None:
            tell(engine)

        await self._do(told, halts=True)

    async def _do(self, work: Callable[[Engine], Awaitable[A]], *, halts: bool = False) -> A | None:
        """Let the engine do something. None: it raised. A caller without an answer is noted.

        `halts`: the caller is a task of the node that ends the process if it fails, as `cluster.supervised_task` does.
        """
        engine = await self._alive()

        async def done() -> A:
            return await work(engine)

        task = asyncio.get_running_loop().create_task(done())
        await asyncio.wait([task], timeout=ANSWER_S)
        if not task.done():
            self.wrong.append("stuck: a caller was never answered")
            task.cancel()
            return None
        try:
            return task.result()
        except EverbellError:
            return None
        except Injected as fault:
            if halts:
                self._broken.append(fault)
            return None

    # The process.

    async def _alive(self) -> Engine:
        """The engine; a new one if the last one has ended."""
        if self._engine is not None and self._broken:
            self._broken.clear()
            self.ends += 1
            self._checker.restarts += 1
            await self._receiver.close()
            crash(self._engine)
            self._receiver = Receiver(self)
            await self._boot()
        assert self._engine is not None
        return self._engine

    async def _boot(self) -> None:
        for _ in range(2):
            try:
                self._engine = await Engine.start(
                    self._store,
                    {"https": self._receiver},
                    Tenants(named=(SHOP, PARK)),
                    self.clock,
                    self._entropy,
                    SETTINGS,
                    self._broken.append,
                )
                return
            except (EverbellError, Injected):
                self._broken.clear()  # The process could not start, and said so.
        raise AssertionError("the engine cannot start")
