"""One tenant's flood leaves another's lateness as it was: counted in turns, on virtual time."""

from __future__ import annotations

from everbell.core.tenant import Tenant
from everbell.engine.settings import EngineSettings
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
