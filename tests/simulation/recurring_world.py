"""Recurring events in a simulated world: outages, slow and failing receivers, pauses, a full disk, crashes.

Everything follows from the seed. The nominal times come from another cron, or from counting; the checker compares.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim
from msgspec.structs import replace

from everbell.channels.port import Delivery
from everbell.core.amendment import Amendment
from everbell.core.event import Event, Record, Repeat
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.engine.requests import Amend, CountEvents, Get, RedriveMatching
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from everbell.errors import Conflict, EverbellError, NotFound, StoreFull
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Filter, Store
from everbell.testing import VirtualClock, run_virtual
from tests.recurrence_checker import Account, Rang, RecurrenceChecker, Recurring
from tests.scheduling import schedule_seen
from tests.simulation.world import RoughStore, crash

TENANT = Tenant(retry=RetryPolicy(6, 100, 2_000))
EVENTS = 24
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Receiver:
    """A channel and the receivers behind it: they are slow, and fail now and then."""

    holds = False
    together = 1

    def __init__(self, world: RecurringWorld) -> None:
        self._world = world
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.begin():
                task = asyncio.get_running_loop().create_task(self._receive(delivery))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _receive(self, delivery: Delivery) -> None:
        world, began_at = self._world, self._world.clock.now()
        dice = world.receiving
        accepted = world.healed or dice.random() > 0.2
        try:
            await asyncio.sleep(dice.expovariate(0.4 if delivery.event.to.endswith("slow") else 50))
        finally:
            world.saw(delivery, began_at, accepted)
        delivery.settle(DELIVERED if accepted else Outcome("failed", "not now", 503))


class RecurringWorld:
    """Schedules events, causes and ends faults, drains, and asks the checker."""

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.clock = clock
        self.checker = RecurrenceChecker(TENANT.retry.max_attempts)
        self.healed = False
        self.receiving = random.Random(f"{seed}/receivers")
        self._work = random.Random(f"{seed}/work")
        self._faults = random.Random(f"{seed}/faults")
        self._entropy = SeededEntropy(seed)
        self._store = RoughStore(MemoryStore(partitions=4), random.Random(f"{seed}/store"), 0.02)
        self._engine: Engine | None = None
        self._receiver = Receiver(self)
        self.broken: list[str] = []

    async def run(self) -> list[str]:
        """The whole story; returns the violations."""
        await self._boot()
        for index in range(EVENTS):
            await self._schedule(index)
        for _ in range(self._faults.randrange(1, 4)):
            await asyncio.sleep(self._faults.uniform(1, 15))
            await self._pause_some()
            await self._outage(self._faults.choice((0.05, 2, 20)))
            await self._resume_all()
        await self._heal_and_drain()
        return self.broken + self.checker.violations()

    def saw(self, delivery: Delivery, began_at: int, accepted: bool) -> None:
        event = delivery.event
        now = self.clock.now()
        name = event.origin or event.id
        self.checker.rang.append(
            Rang(name, event.occurrence, delivery.attempt, event.due_at, began_at, now, delivery.epoch, accepted)
        )

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "the engine runs whenever it is used"
        return self._engine

    async def _boot(self) -> None:
        self._receiver = Receiver(self)
        settings = EngineSettings(in_flight=50, lookahead_ms=2_000, page_events=7)
        store: Store = self._store  # type: ignore[assignment]  # It forwards all other methods.
        self._engine = await Engine.start(
            store, {"https": self._receiver}, Tenants(TENANT), self.clock, self._entropy, settings, self._broke
        )

    def _broke(self, error: BaseException) -> None:
        self.broken.append(f"broken: {error!r}")

    async def _schedule(self, index: int) -> None:
        work = self._work
        now = self.clock.now()
        count = work.randrange(1, 25)
        policy = Repeat(
            0,
            count,
            misfire=work.choice(("all", "latest", "skip")),
            catch_up_ms=work.choice((None, None, 3_000)),
            overlap=work.choice(("wait", "skip", "allow")),
        )
        repeat, times = self._recurrence(policy, now, count)
        name = f"event-{index}"
        key = f"key-{work.randrange(3)}" if work.random() < 0.3 and policy.overlap != "allow" else None
        target = f"https://host{work.randrange(3)}.{work.choice(('fine', 'slow'))}"
        draft = Draft(times[0], target, b"{}", name, key, repeat=repeat)
        while True:
            (result,) = await schedule_seen(self.engine.ask, "default", [draft])
            if not isinstance(result, EverbellError):
                break
            assert isinstance(result, StoreFull), result
        self.checker.asked[name] = Recurring(name, times, repeat.misfire, repeat.catch_up_ms, repeat.overlap)

    def _recurrence(self, policy: Repeat, now: int, count: int) -> tuple[Repeat, tuple[int, ...]]:
        work = self._work
        if work.random() < 0.5:
            every_ms = work.choice((70, 400, 1_000, 5_000))
            first_at = now + work.randrange(0, 5_000)
            return replace(policy, every_ms=every_ms), tuple(first_at + number * every_ms for number in range(count))
        cron = work.choice(("* * * * * *", "*/3 * * * * *", "5,6,40 * * * * *"))
        zone = work.choice(("UTC", "America/New_York"))
        # The other library gives six fields the same meaning as Everbell where the hour is a star.
        start = (EPOCH + timedelta(milliseconds=now)).astimezone(ZoneInfo(zone))
        times = tuple(int(at.timestamp()) * 1_000 for at in islice(CronSim(cron, start), count))
        return replace(policy, cron=cron, tz=zone), times

    async def _outage(self, duration_s: float) -> None:
        """Kill the process between two steps, and start it again after a while."""
        engine, self._engine = self.engine, None
        await self._receiver.close()
        crash(engine)
        await asyncio.sleep(duration_s)
        await self._boot()

    async def _pause_some(self) -> None:
        for name in self._work.sample(sorted(self.checker.asked), 3):
            with suppress(Conflict, NotFound, StoreFull):
                await self.engine.ask(Amend("default", name, Amendment(paused=True, note=None), None))

    async def _resume_all(self) -> None:
        for name in self.checker.asked:
            while True:
                try:
                    await self.engine.ask(Amend("default", name, Amendment(paused=False, note=None), None))
                except StoreFull:
                    continue
                except (Conflict, NotFound):
                    pass
                break

    async def _heal_and_drain(self) -> None:
        self.healed = True
        self._store.full = 0
        for _ in range(60):
            await asyncio.sleep(60)  # Virtual time, for retries that are this far apart.
            await self.engine.ask(RedriveMatching(Filter("default", "dead")))
            counts = await self.engine.ask(CountEvents())
            if all(count.pending == 0 and count.dead == 0 for count in counts.values()):
                break
        for name in self.checker.asked:
            event: Event | Record = (await self.engine.ask(Get("default", name))).event
            if isinstance(event, Record) and event.course is not None:
                course = event.course
                self.checker.accounts[name] = Account(course.fired, course.missed, course.skipped)
        await self.engine.stop()


def simulate_recurring(seed: int) -> RecurringWorld:
    """Run one seed."""

    async def main(clock: VirtualClock) -> RecurringWorld:
        world = RecurringWorld(seed, clock)
        world.broken = await world.run()
        return world

    return run_virtual(main)
