"""One node in a simulated world.

The real engine on virtual time, a store that is slow, full or cut off, receivers that fail, crashes at any moment, and
the independent checker watching.

Everything follows from the seed. Separate generators drive workload, faults and receivers, so that a change in one
leaves the others as they were.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from everbell.channels.port import Delivery
from everbell.core.allotment import Allotment
from everbell.core.amendment import Amendment
from everbell.core.event import Event, Repeat
from everbell.core.pause import What
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.account import FLOWS_FREE
from everbell.engine.engine import Engine
from everbell.engine.requests import Amend, Cancel, CountEvents, Find, Redrive, RedriveMatching, Schedule
from everbell.engine.row_preparer import RowPreparer
from everbell.engine.seen import DraftResult
from everbell.engine.seen import Seen as SeenEvent
from everbell.engine.settings import EngineSettings
from everbell.engine.working_set import SKIPPED_FLOWS_MAX
from everbell.entropy import SeededEntropy
from everbell.errors import Conflict, EverbellError, NotFound, StoreFull, StoreUnavailable
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Change, Filter, PreparedRows, Refusal, Store
from everbell.testing import VirtualClock
from tests.checker import Asked, Checker, Seen
from tests.scheduling import made as made_event
from tests.scheduling import schedule_seen
from tests.simulation.interruptions import ACTIONS, Action, Edit, HeldStore, Interruptions, Known, dead_of
from tests.simulation.pausing import Pausing, Planned, planned
from tests.simulation.rough_store import GROUP_CHANGES

HEALED_MINUTES = 180
PAGE_S = 0.004
INTERRUPTED_S = 10
"""How long awaits are still interrupted after the last request: many events become due only then."""
STOCK = 20
"""The number of places that a gateway has in stock."""
BLOCKING = Tenant(retry=RetryPolicy(8, 200, 5_000), in_flight=4)
PARKING = Tenant("parking", retry=RetryPolicy(3, 200, 1_000), on_dead="park", in_flight=4)


@dataclass(frozen=True)
class Options:
    """How rough a world is."""

    events: int = 150
    minutes: float = 2.0
    keys: int = 6
    targets: int = 4
    keyed: float = 0.6
    crashes: int = 2
    cancels: float = 0.1
    moves: float = 0.1
    touches: float = 0.05
    repeats: float = 0.05
    failing: float = 0.25
    store_full: float = 0.03
    memory_bytes: int = 30_000
    page_events: int = 7
    partitions: int = 4
    outages: int = 0
    """How often a target is down for a while: all attempts to it fail at once."""
    kinds: tuple[str, ...] = ("fine", "slow", "bad")
    """The kinds of targets: bad ones nearly always fail."""
    leads_ms: tuple[int, ...] = (0, 50, 500, 5_000, 30_000)
    """About how long before their due time events are requested."""
    burst: int = 1
    """The number of events that are requested together."""
    line: int = 3
    """The maximum length of a key's line in memory; short, so that a small world shows the faults of a big one."""
    slice: int = 5_000
    """The number of events that ring in one iteration of the loop."""
    grain_ms: int = 1
    """Due times are multiples of this: a coarse grid makes herds, in which keys have several events at one instant."""
    gateway: bool = False
    """Whether plain events come through a gateway, which gives them their places before the engine gets them."""
    pauses: int = 0
    """How often an operator pauses a tenant, a key or a target for a while."""
    holds: float = 0.0
    """How likely a call of the store is held for a while, with actions during the await."""
    interruptions: tuple[Action, ...] = ACTIONS
    """The actions that may happen then."""
    down_s: float = 1.0
    """About how long the node is down after a crash. Pauses may end meanwhile, and events become due."""
    page_s: float = PAGE_S
    """About how long the store takes to read a page."""
    flows_free: int = FLOWS_FREE
    """The number of flows in memory that cost nothing. Further flows are paid for from the budget."""
    skipped_flows: int = SKIPPED_FLOWS_MAX
    """The number of a tenant's flows with skips of their own."""


class Outage(NamedTuple):
    """A target is down, in seconds from the beginning."""

    host: str
    from_s: float
    until_s: float


def _outages(options: Options, dice: random.Random) -> list[Outage]:
    whole_s = options.minutes * 60
    found = []
    for _ in range(options.outages):
        from_s = dice.uniform(0, whole_s)
        found.append(Outage(f"https://host{dice.randrange(options.targets)}.", from_s, from_s + dice.uniform(1, 15)))
    return found


class RoughStore:
    """A store in front of the real one: slow, sometimes full, and cut off by a crash before or after it has written."""

    def __init__(self, inner: Store, dice: random.Random, full: float, page_s: float = PAGE_S) -> None:
        self.inner = inner
        self.partitions = inner.partitions
        self.group_changes = GROUP_CHANGES
        self.preparer = self
        self._dice = dice
        self.full = full
        self._page_s = page_s
        self.refused = 0

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        await asyncio.sleep(self._dice.expovariate(200))
        if self._dice.random() < self.full:
            self.refused += 1
            raise StoreFull("the simulated disk is full")
        result = await self.inner.apply(changes, epochs)
        await asyncio.sleep(self._dice.expovariate(200))
        return result

    async def prepare(self, changes: Sequence[Change]) -> None:
        await asyncio.sleep(self._dice.expovariate(500))

    async def page(self, *arguments: object) -> object:
        return await self._slowly(self.inner.page, *arguments, pause_s=self._page_s / 2)

    async def waiting(self, *arguments: object) -> object:
        return await self._slowly(self.inner.waiting, *arguments)

    async def heads(self, *arguments: object) -> object:
        return await self._slowly(self.inner.heads, *arguments)

    async def _slowly(
        self, read: Callable[..., Awaitable[object]], *arguments: object, pause_s: float = 0.002
    ) -> object:
        await asyncio.sleep(self._dice.expovariate(1 / pause_s))
        found = await read(*arguments)
        await asyncio.sleep(self._dice.expovariate(1 / pause_s))
        return found

    async def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


class Receiver:
    """A channel and the receivers behind it: they are slow, fail, refuse, and sometimes their answer is lost."""

    holds = False
    together = 1

    def __init__(self, world: World) -> None:
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
        world = self._world
        dice = world.receiving
        began_at = world.clock.now()
        host = delivery.event.to
        if world.is_down(host):
            outcome, accepted, lost = Outcome("failed", "nobody is there"), False, False
            pause_s = 0.0
        else:
            outcome, accepted, lost = self._decide(host, dice)
            pause_s = dice.expovariate(20 if host.endswith("slow") else 200)
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            # The sender died: it never learns whether the receiver accepted.
            world.saw(delivery, began_at, accepted, answer_lost=True)
            raise
        world.saw(delivery, began_at, accepted, answer_lost=lost)
        given_up = outcome.result == "refused" or (
            outcome is not DELIVERED and delivery.attempt == PARKING.retry.max_attempts
        )
        if delivery.event.tenant == PARKING.name and given_up:
            # A parked event does not block its key, so the order of its later occurrences is not checked.
            world.checker.asked[delivery.event.payload.decode()].moved = True
        delivery.settle(outcome)

    def _decide(self, host: str, dice: random.Random) -> tuple[Outcome, bool, bool]:
        if self._world.healed:
            return DELIVERED, True, False
        roll = dice.random()
        failing = 0.9 if host.endswith("bad") else self._world.options.failing
        if roll >= failing:
            return DELIVERED, True, False
        if roll < failing * 0.1:
            return Outcome("refused", "no"), False, False
        if roll < failing * 0.4:
            return Outcome("timeout", "no answer"), True, True
        return Outcome("failed", "not now", 503), False, False


class Gateway:
    """A gateway for plain events: it has places in stock, and its prepared rows need some time to arrive."""

    def __init__(self, engine: Engine, clock: VirtualClock, entropy: SeededEntropy) -> None:
        self._engine = engine
        self._stock: list[Allotment] = []
        self._sent = 0
        row_preparer = RowPreparer(clock, entropy, self._places, self._send)
        self.schedule_plain = row_preparer.schedule

    def _places(self, count: int) -> Allotment | None:
        if not self._stock:
            allotment = self._engine._intake.allot(STOCK)
            while allotment is not None and allotment.count:
                places, allotment = allotment.cut(count)
                self._stock.append(places)
        return self._stock.pop() if self._stock else None

    async def _send(self, request: Schedule) -> Sequence[DraftResult]:
        if isinstance(request.body, PreparedRows):
            self._sent += 1
            await asyncio.sleep(self._sent % 7 / 100)
        return await self._engine.ask(request)


class World:
    """Runs a workload through crashes, heals, drains, and asks the checker."""

    def __init__(self, seed: int, clock: VirtualClock, options: Options) -> None:
        self.clock = clock
        self.options = options
        self.checker = Checker()
        self.healed = False
        self.receiving = random.Random(f"{seed}/receivers")
        self._work = random.Random(f"{seed}/work")
        self._faults = random.Random(f"{seed}/faults")
        self._outages = _outages(options, random.Random(f"{seed}/outages"))
        self._start_at = clock.now()
        hosts = [f"https://host{number}.{kind}" for number in range(options.targets) for kind in options.kinds]
        pauses = planned(random.Random(f"{seed}/pauses"), options.pauses, options.minutes * 70, options.keys, hosts)
        self._pausing = Pausing(clock, self.checker, pauses)
        self._entropy = SeededEntropy(seed)
        self._store = RoughStore(
            MemoryStore(partitions=options.partitions),
            random.Random(f"{seed}/store"),
            options.store_full,
            options.page_s,
        )
        self._interruptions = Interruptions(
            random.Random(f"{seed}/interruptions"), clock, self, options.holds, options.interruptions
        )
        self._redrives = random.Random(f"{seed}/redrives")
        self._tenants = Tenants(BLOCKING, (PARKING,))
        self._engine: Engine | None = None
        self._receiver: Receiver | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self.trace: list[str] = []
        self.broken: list[str] = []
        self.least_free = options.memory_bytes
        self.skipped = 0

    async def run(self) -> list[str]:
        """The whole story; returns the violations."""
        await self._boot()
        pausing = asyncio.ensure_future(self._pause())
        # Some crashes come after the last request: then no new event can restart a stuck line.
        crashes = sorted(self._faults.uniform(0, self.options.minutes * 80) for _ in range(self.options.crashes))
        bursts_a_second = self.options.events / self.options.burst / (self.options.minutes * 60)
        for index in range(self.options.events):
            if index % self.options.burst == 0:
                await asyncio.sleep(self._work.expovariate(bursts_a_second))
            while crashes and self._passed_s() > crashes[0]:
                crashes.pop(0)
                await self._crash()
            self._ask(index)
        for moment_s in crashes:
            await asyncio.sleep(max(moment_s - self._passed_s(), 0))
            await self._crash()
        if self.options.holds:
            await asyncio.sleep(INTERRUPTED_S)
        await self._heal_and_drain()
        await pausing
        return self.broken + self.checker.violations()

    async def _pause(self) -> None:
        """The operator pauses and resumes even while the engine is down."""
        plan = self._pausing.plan
        while plan:
            await asyncio.sleep(max(plan[0].at_s - self._passed_s(), 0))
            if plan:
                self._pausing.act(plan.pop(0), self._engine)

    def is_down(self, host: str) -> bool:
        """Whether a target is down at the moment."""
        passed_s = self._passed_s()
        down = [each for each in self._outages if host.startswith(each.host) and each.from_s <= passed_s < each.until_s]
        return bool(down) and not self.healed

    def _passed_s(self) -> float:
        return (self.clock.now() - self._start_at) / 1_000

    def saw(self, delivery: Delivery, began_at: int, accepted: bool, *, answer_lost: bool) -> None:
        """Record a receiver's report."""
        event = delivery.event
        now = self.clock.now()
        name = event.payload.decode()
        self.trace.append(
            f"{now} {name}:{event.occurrence} #{delivery.attempt} e{delivery.epoch} {accepted} {answer_lost}"
        )
        self.checker.see(
            Seen(
                name,
                event.occurrence,
                delivery.attempt,
                delivery.epoch,
                event.payload,
                began_at,
                now,
                accepted,
                answer_lost,
            )
        )

    async def _boot(self) -> None:
        self._receiver = Receiver(self)
        settings = EngineSettings(
            memory_bytes=self.options.memory_bytes,
            page_events=self.options.page_events,
            in_flight=50,
            lookahead_ms=2_000,
        )
        store: Store = self._store  # type: ignore[assignment]  # It forwards all other methods.
        if self.options.holds:
            store = HeldStore(store, self._interruptions)  # type: ignore[assignment]  # The same.
        engine = await Engine.start(
            store, {"https": self._receiver}, self._tenants, self.clock, self._entropy, settings, self._broke, {}
        )
        self._pausing.tell(engine)
        await engine.take(dict.fromkeys(range(store.partitions), store.epoch + 1))
        self._pausing.tell(engine)
        self._engine = engine
        self._gateway = Gateway(engine, self.clock, self._entropy)

    def _broke(self, error: BaseException) -> None:
        self.broken.append(f"broken: {error!r}")

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append(f"broken: {error!r}")

    async def _crash(self) -> None:
        """Kill the process between two steps; its operations stay undone, or done and unanswered."""
        assert self._engine is not None
        assert self._receiver is not None
        self.trace.append(f"{self.clock.now()} crash")
        self.checker.restarts += 1
        engine, self._engine = self._engine, None
        for task in list(self._asking):
            task.cancel()
        await self._receiver.close()
        crash(engine)
        await asyncio.sleep(self._faults.expovariate(1 / self.options.down_s))
        await self._boot()

    def _ask(self, index: int) -> None:
        self._interruptions.follow(self._ask_for(self._one(index)), None)

    def _ask_for(self, asking: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asked)
        return task

    async def _one(self, index: int) -> None:
        work = self._work
        if self._engine is None:
            return
        tenant = "parking" if index % 3 == 0 else "default"
        key = f"{tenant}-{work.randrange(self.options.keys)}" if work.random() < self.options.keyed else None
        lead_ms = int(work.choice(self.options.leads_ms) * work.uniform(0.5, 1.5))
        name = f"event-{index}"
        repeat = Repeat(700, 3) if work.random() < self.options.repeats else None
        target = f"https://host{work.randrange(self.options.targets)}.{work.choice(self.options.kinds)}"
        client_id = name if work.random() < 0.5 else None
        due_at = self.clock.now() + lead_ms
        due_at += -due_at % self.options.grain_ms
        draft = Draft(due_at, target, name.encode(), client_id, key, repeat=repeat)
        asked = Asked(name, due_at, name.encode(), key, index, 3 if repeat else 1, 700 if repeat else 0)
        asked.tenant, asked.target = tenant, target
        self.checker.ask(asked)
        result = await self._schedule(self._engine, tenant, draft)
        self._watch()
        if isinstance(result, EverbellError):
            assert isinstance(result, (StoreFull, StoreUnavailable)), result
            asked.refused = True
            return
        asked.acknowledged_at = self.clock.now()
        asked.index = result.event.sequence if isinstance(result.event, Event) else index
        self._interruptions.learn(Known(result.event.id, asked))
        roll = work.random()
        pause_s = work.expovariate(1 / 5)
        if roll < self.options.cancels:
            await asyncio.sleep(pause_s)
            await self._cancel(tenant, result.event.id, asked)
        elif roll < self.options.cancels + self.options.moves:
            await asyncio.sleep(pause_s)
            await self._move(tenant, result.event.id, asked)
        elif roll < self.options.cancels + self.options.moves + self.options.touches:
            await asyncio.sleep(pause_s)
            await self._touch(tenant, result.event.id)

    async def _schedule(self, engine: Engine, tenant: str, draft: Draft) -> SeenEvent | EverbellError:
        plain = SimpleBatch([draft.due_at], [draft.to], [draft.payload])
        if not self.options.gateway or plain.drafts() != [draft]:
            (result,) = await schedule_seen(engine.ask, tenant, [draft], self._store.inner)
            return result
        (made,) = await self._gateway.schedule_plain(tenant, plain)
        if not isinstance(made, str):
            return made
        return await made_event(made, draft, tenant)

    def edit(self, edit: Edit, known: Known) -> asyncio.Task[None] | None:
        """A user asks for a change of an event during an await. None: the engine is down."""
        if self._engine is None:
            return None
        tenant = known.asked.tenant
        changes: dict[Edit, Callable[[], Coroutine[None, None, None]]] = {
            "touch": lambda: self._touch(tenant, known.id),
            "move": lambda: self._move(tenant, known.id, known.asked),
            "cancel": lambda: self._cancel(tenant, known.id, known.asked),
            "redrive": lambda: self._redrive(tenant),
        }
        return self._ask_for(changes[edit]())

    def pause(self, thing: tuple[str, What, str], for_s: float | None) -> None:
        """An operator pauses a thing during an await; None: resumes it."""
        self._pausing.act(Planned(0, thing, for_s, for_s is None), self._engine)

    async def _cancel(self, tenant: str, event_id: str, asked: Asked) -> None:
        if self._engine is None or asked.cancel_unknown:
            return
        asked.cancel_unknown = True
        try:
            await self._engine.ask(Cancel(tenant, event_id))
        except (Conflict, NotFound, StoreFull, StoreUnavailable):
            asked.cancel_unknown = False
        else:
            asked.cancelled_at = self.clock.now()

    async def _move(self, tenant: str, event_id: str, asked: Asked) -> None:
        if self._engine is None or asked.every_ms:
            return
        due_at = self.clock.now() + self._work.randrange(10_000)
        asked.moved = True
        asked.due_at = min(asked.due_at, due_at)
        with suppress(Conflict, NotFound, StoreFull, StoreUnavailable):
            await self._engine.ask(Amend(tenant, event_id, Amendment(due_at=due_at), None))

    async def _touch(self, tenant: str, event_id: str) -> None:
        """Change a field that must not affect the time and the order of deliveries."""
        if self._engine is None:
            return
        with suppress(Conflict, NotFound, StoreFull, StoreUnavailable):
            await self._engine.ask(Amend(tenant, event_id, Amendment(tags=("touched",)), None))

    async def _redrive(self, tenant: str) -> None:
        """Redrive a dead event of the tenant."""
        event_id = await dead_of(self._store.inner, tenant, self._redrives)
        if self._engine is None or event_id is None:
            return
        with suppress(Conflict, NotFound, StoreFull, StoreUnavailable):
            await self._engine.ask(Redrive(tenant, event_id))

    @property
    def interrupted(self) -> Counter[tuple[str, Action]]:
        """The number of actions during awaits, by the awaited call."""
        return self._interruptions.count

    @property
    def faults(self) -> int:
        """How often the disk was full."""
        return self._store.refused

    def _watch(self) -> None:
        if self._engine is not None:
            self.least_free = min(self.least_free, self._engine.memory.budget.free_bytes)
            self.skipped += len(self._engine.memory.starved)

    async def _heal_and_drain(self) -> None:
        """End all faults and redrive dead events: then all events must be delivered."""
        self.healed = True
        self._store.full = 0
        self._interruptions.stop()
        if self._asking:
            _, unanswered = await asyncio.wait(self._asking, timeout=600)
            self.broken += ["stuck: a caller was never answered"] * len(unanswered)
            for task in unanswered:
                task.cancel()
        assert self._engine is not None
        self._pausing.end(self._engine)
        for _ in range(HEALED_MINUTES):
            await asyncio.sleep(60)  # Of virtual time, for retries that are that far apart.
            for tenant in ("default", "parking"):
                await self._engine.ask(RedriveMatching(Filter(tenant, "dead")))
            counts = await self._engine.ask(CountEvents())
            if all(count.pending == 0 and count.dead == 0 for count in counts.values()):
                break
        for tenant in ("default", "parking"):
            found, _ = await self._engine.ask(Find(Filter(tenant, "expired"), None, 1_000))
            for seen in found:
                self.checker.ended[seen.event.id] = seen.status
        await self._engine.stop()


def crash(engine: Engine) -> None:
    """Kill an engine at once: its tasks are gone, its timers never fire."""
    engine._agenda.stop()
    engine.dispatcher._stopped = True
    engine.pauses.stop()
    engine._upkeep.stop()
    if engine._writer._task is not None:
        engine._writer._task.cancel()
