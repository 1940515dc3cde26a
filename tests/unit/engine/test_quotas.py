"""Quotas: how much a tenant may have waiting, and how fast it may come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from everbell.core.event import Repeat
from everbell.core.retry import DELIVERED
from everbell.core.spec import Draft
from everbell.core.tenant import Limits, Tenant, Tenants
from everbell.core.time import SECOND_MS
from everbell.engine.engine import Engine
from everbell.engine.notices import Notices
from everbell.engine.operations import TRIALS_MAX
from everbell.engine.quotas import Quotas
from everbell.engine.requests import CancelMatching, TryOut
from everbell.engine.seen import Seen
from everbell.entropy import SeededEntropy
from everbell.errors import EverbellError, Throttled
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Counts, Filter
from everbell.testing import VirtualClock, run_virtual
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import REFUSED, Stage, play

TENANTS = Tenants(
    Tenant(),
    (
        Tenant("paced", limits=Limits(rate=10)),
        Tenant("small", limits=Limits(pending=5)),
        Tenant("both", limits=Limits(pending=100, rate=10)),
    ),
)


class Counting:
    """A store's count that a test sets."""

    def __init__(self) -> None:
        self.pending = 0
        self.asked = 0

    async def __call__(self) -> Mapping[str, Counts]:
        self.asked += 1
        return {"small": Counts(pending=self.pending), "both": Counts(pending=self.pending)}


def held(test: Callable[[Quotas, Counting], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        counting = Counting()
        await test(Quotas(TENANTS, clock, counting, Notices(clock)), counting)

    run_virtual(main)


async def room(quotas: Quotas, tenant: str, wanted: int) -> int:
    return (await quotas.room(tenant, wanted))[0]


def test_a_tenant_without_a_quota_is_not_bound() -> None:
    async def scene(quotas: Quotas, counting: Counting) -> None:
        assert [quotas.bind(tenant) for tenant in ("anybody", "paced", "small", "both")] == [False, True, True, True]

    held(scene)


def test_a_rate_holds_on_average_and_lets_a_second_s_worth_burst() -> None:
    async def scene(quotas: Quotas, counting: Counting) -> None:
        taken = 0
        for _ in range(1_000):  # Ten seconds, a hundred requests a second.
            taken += await room(quotas, "paced", 1)
            await asyncio.sleep(0.01)
        assert 100 <= taken <= 111

    held(scene)


def test_a_large_batch_passes_and_is_paid_for() -> None:
    async def scene(quotas: Quotas, counting: Counting) -> None:
        assert await room(quotas, "paced", 60) == 60
        count, refusal = await quotas.room("paced", 1)
        assert count == 0
        assert isinstance(refusal, Throttled)
        assert refusal.retry_after_s == 5
        await asyncio.sleep(4.9)
        assert await room(quotas, "paced", 1) == 0
        await asyncio.sleep(0.2)
        assert await room(quotas, "paced", 1) == 1

    held(scene)


def test_pending_events_are_bounded_and_ended_events_make_room() -> None:
    async def scene(quotas: Quotas, counting: Counting) -> None:
        counting.pending = 2
        count, refusal = await quotas.room("small", 4)
        assert count == 3
        assert isinstance(refusal, Throttled)
        counting.pending = 5
        assert await room(quotas, "small", 1) == 0
        counting.pending = 4
        await asyncio.sleep(0.1)
        assert await room(quotas, "small", 3) == 1

    held(scene)


def test_the_store_is_asked_now_and_then_only() -> None:
    async def scene(quotas: Quotas, counting: Counting) -> None:
        for _ in range(50):
            await room(quotas, "both", 1)
            counting.pending += 1
            await asyncio.sleep(0.1)
        assert counting.asked <= 6

        for _ in range(100):
            await room(quotas, "small", 10)
        assert counting.asked <= 8, "refusing does not ask for each request either"

    held(scene)


def test_invented_tenant_names_cost_a_bounded_amount_of_memory() -> None:
    async def main(clock: VirtualClock) -> None:
        quotas = Quotas(Tenants(Tenant(limits=Limits(rate=1))), clock, Counting(), Notices(clock))
        for number in range(20_000):
            await quotas.room(f"tenant-{number}", 1)
        assert len(quotas._uses) <= 10_000

    run_virtual(main)


@pytest.mark.parametrize("tenant", ["small", "anybody"])
def test_the_engine_keeps_to_them(tenant: str) -> None:
    async def main(clock: VirtualClock) -> None:
        engine = await Engine.start(MemoryStore(4), {}, TENANTS, clock, SeededEntropy(1))
        try:
            drafts = [Draft(clock.now() + 60_000, "queue:work", b"{}") for _ in range(8)]
            results: list[Seen | EverbellError] = await schedule_seen(engine.ask, tenant, drafts)
            expected = 5 if tenant == "small" else 8
            assert [isinstance(result, Seen) for result in results] == [True] * expected + [False] * (8 - expected)
            assert all(isinstance(result, Throttled) for result in results[expected:])
            assert await engine.ask(CancelMatching(Filter(tenant))) == expected
            await asyncio.sleep(1)
            (again,) = await schedule_seen(engine.ask, tenant, drafts[:1])
            assert isinstance(again, Seen)
        finally:
            await engine.stop()

    run_virtual(main)


def test_occurrences_above_the_limit_stop_to_overlap_and_none_is_lost() -> None:
    """A receiver that hangs would otherwise gather one pending event a second, without end."""

    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        event = await stage.schedule("e", 0, repeat=Repeat(SECOND_MS, 40, overlap="allow", misfire="all"))
        await stage.pass_ms(60_000)
        pending = (await stage.store.counts())["default"].pending
        assert pending <= 12, "the limit may be exceeded a little"
        assert "events pending" in str(await stage.ask("another"))
        stage.receiver.answer = lambda delivery: DELIVERED
        for name in [delivery.event.payload.decode() for delivery in stage.receiver.open]:
            stage.receiver.settle(name)
        await stage.pass_ms(60_000)
        occurrences = {(got.event.origin or got.event.id, got.event.occurrence) for got in stage.receiver.got}
        assert occurrences == {(event.id, number) for number in range(1, 41)}

    limited = Tenant(limits=Limits(pending=10), in_flight=1_000, timeout_ms=1_000_000)
    play(scene, tenants=(limited,))


def test_occurrences_and_dead_letters_use_up_the_rate() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("e", 0, repeat=Repeat(100, 30, overlap="allow"))
        await stage.pass_ms(3_100)
        assert "2 events a second" in str(await stage.ask("another"))
        await stage.pass_ms(60_000)
        stage.receiver.answer = lambda delivery: REFUSED
        for _ in range(2):
            await stage.schedule("dies")
            await stage.pass_ms(1)
        assert "2 events a second" in str(await stage.ask("another")), "each death made another event"
        await stage.pass_ms(60_000)
        assert isinstance(await stage.ask("another"), Seen)

    limited = Tenant(limits=Limits(rate=2), dead_letter_to="https://letters.example")
    play(scene, tenants=(limited,))


def test_dry_runs_use_up_the_rate_and_have_a_limit_of_their_own() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 3_600_000)
        await stage.pass_ms(60_000)
        for _ in range(2):
            await stage.engine.ask(TryOut("default", event.id))
        with pytest.raises(Throttled, match="2 events a second"):
            await stage.engine.ask(TryOut("default", event.id))
        other = await stage.schedule("e", 3_600_000, tenant="free")
        stage.receiver.answer = lambda delivery: None
        trials = [asyncio.ensure_future(stage.engine.ask(TryOut("free", other.id))) for _ in range(TRIALS_MAX)]
        await stage.settled()
        assert len(stage.receiver.open) == TRIALS_MAX
        with pytest.raises(Throttled, match="dry runs"):
            await stage.engine.ask(TryOut("free", other.id))
        for _ in trials:
            stage.receiver.settle("e")
        assert {outcome.result for outcome in await asyncio.gather(*trials)} == {"delivered"}
        stage.receiver.answer = lambda delivery: DELIVERED
        await stage.engine.ask(TryOut("free", other.id))

    limited = Tenant(limits=Limits(rate=2))
    play(scene, tenants=(limited, Tenant("free")))
