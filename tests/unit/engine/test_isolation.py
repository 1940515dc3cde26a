"""One tenant's flood leaves another's lateness as it was: counted in turns, on virtual time."""

from __future__ import annotations

from everbell.core.retry import DELIVERED
from everbell.core.tenant import Tenant
from everbell.engine.requests import LeaseEvents
from everbell.engine.settings import EngineSettings
from everbell.engine.view_requests import Explain, GetTargets
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import Stage, play

FLOOD = 2_000
EACH_MS = 20


def lateness_beside(flood: int) -> list[int]:
    """How late the events of a quiet tenant begin, one every 20 ms, while another has a flood due at once."""
    late: list[int] = []

    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 0.01
        due = {}
        for number in range(50):
            event = await stage.schedule(f"quiet-{number}", 1_000 + number * EACH_MS, tenant="quiet")
            due[event.id] = event.due_at
        drafts = [stage.draft(f"flood-{number}", 1_000) for number in range(flood)]
        if drafts:
            await schedule_seen(stage.engine.ask, "flood", drafts)
        await stage.pass_ms(4_000)
        late.extend(got.at - due[got.event.id] for got in stage.receiver.got if got.event.id in due)
        assert len(stage.receiver.got) == 50 + flood

    play(scene, tenants=[Tenant("flood", in_flight=64)], settings=EngineSettings(in_flight=128))
    return sorted(late)


def test_a_flood_of_one_tenant_makes_another_no_later() -> None:
    alone, beside = lateness_beside(0), lateness_beside(FLOOD)
    assert len(alone) == len(beside) == 50
    assert beside[-1] <= alone[-1] + 1, (alone[-1], beside[-1])


def test_a_tenant_with_many_slow_targets_leaves_slots_for_others() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None if delivery.event.tenant == "many" else DELIVERED
        drafts = [stage.draft(f"many-{number}", 1_000, to=f"https://host{number}.example") for number in range(500)]
        await schedule_seen(stage.engine.ask, "many", drafts)
        quiet = await stage.schedule("quiet", 2_000, tenant="quiet")
        await stage.pass_ms(3_000)

        assert len(stage.receiver.open) == 80
        assert [got.at for got in stage.receiver.got if got.name == "quiet"] == [quiet.due_at]

    play(scene, settings=EngineSettings(in_flight=100))


def test_leases_of_workers_take_no_slots_of_deliveries() -> None:
    async def scene(stage: Stage) -> None:
        drafts = [stage.draft(f"task-{number}", 0, to="queue:tasks") for number in range(30)]
        await schedule_seen(stage.engine.ask, "default", drafts)
        await stage.pass_ms(100)
        leased = await stage.engine.ask(LeaseEvents("default", "tasks", 30, 0, 60_000))
        assert len(leased) == 30

        pushed = await stage.schedule("pushed", 1_000)
        await stage.pass_ms(2_000)
        assert [(got.name, got.at) for got in stage.receiver.got] == [("pushed", pushed.due_at)]

    play(scene, settings=EngineSettings(in_flight=10))


HOSTS = 3_000


def test_a_tenant_with_more_targets_than_memory_delays_no_other_and_stays_within_the_budget() -> None:
    """Each target of one tenant has one event. All are due together, and take long. Another tenant has a few events."""

    async def scene(stage: Stage) -> None:
        stage.receiver.takes_s = 0.3
        memory = stage.engine.memory
        at = 20_000
        drafts = [stage.draft(f"many-{number}", at, to=f"https://host{number}.example") for number in range(HOSTS)]
        await schedule_seen(stage.engine.ask, "many", drafts)
        due = {}
        for number in range(50):
            event = await stage.schedule(f"quiet-{number}", at + number * EACH_MS, tenant="quiet")
            due[event.id] = event.due_at
        least_free, most_flows = memory.budget.free_bytes, 0
        while len(stage.receiver.got) < HOSTS + 50:
            await stage.pass_ms(50)
            least_free = min(least_free, memory.budget.free_bytes)
            most_flows = max(most_flows, len(memory.flows.all()))
            assert stage.clock.now() < stage.start_at + 120_000, len(stage.receiver.got)

        late = [got.at - due[got.event.id] for got in stage.receiver.got if got.event.id in due]
        assert len(late) == 50
        assert max(late) <= 1
        assert least_free >= 0
        # Far fewer flows than targets were in memory at any time, and everything is given back.
        assert most_flows < HOSTS / 4
        await stage.pass_ms(1_000)
        assert memory.budget.free_bytes == memory.budget.total_bytes
        assert not memory.starved

    # The memory is enough for about 330 events with a flow each.
    play(scene, settings=EngineSettings(memory_bytes=1_000_000, in_flight=200, page_events=50))


def test_the_targets_of_an_overflow_are_told_as_left_in_the_store() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        events = [await stage.schedule(f"e{number}", 100, to=f"https://host{number}.example") for number in range(300)]
        await stage.pass_ms(1_000)
        codes = set()
        for event in events:
            explained = await stage.engine.ask(Explain(event.tenant, event.id))
            assert explained.why is not None
            codes.add(explained.why.code)
        assert codes == {"delivering", "memory-full"}
        targets = (await stage.engine.ask(GetTargets("default"))).targets
        assert all(target.target for target in targets)

    play(scene, settings=EngineSettings(memory_bytes=20_000))
