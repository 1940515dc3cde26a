"""Health that names the problem, and that fails only where that helps."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everbell.core.health import Health, QueuesHealth, StoreHealth
from everbell.errors import StoreBroken, StoreFull, StoreUnavailable
from everbell.node.diagnosis import diagnose, disk_health, store_health
from everbell.node.metrics import render
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import Resident, Town, in_town
from tests.unit.engine import stage as engine_stage
from tests.unit.engine.stage import Stage
from tests.unit.node.test_metrics import values


def health_of(resident: Resident, *, is_stopping: bool = False) -> Health:
    return diagnose(resident.engine, resident.node, None, None, None, 0, is_stopping=is_stopping)


def test_a_node_that_is_well_says_so_with_figures() -> None:
    async def scene(town: Town) -> None:
        health = health_of(*await town.grow("a"))
        assert (health.state, health.reason, health.node) == ("ready", None, "a")
        assert health.store is not None
        assert health.store.state == "ok"
        assert health.cluster is not None
        assert health.cluster.ok
        assert health.cluster.partitions > 0
        assert health.cluster.lease_left_ms > 0
        assert health.backlog is not None
        assert (health.backlog.ok, health.backlog.overdue_ms) == (True, 0)

    in_town(scene)


def test_the_worst_of_the_parts_is_the_state() -> None:
    async def scene(town: Town) -> None:
        (resident,) = await town.grow("a")
        assert health_of(resident, is_stopping=True).state == "stopping"
        resident.engine._supervisor.fault = StoreBroken("an fsync failed for postgresql://bell:hunter2@db/bell")
        health = health_of(resident, is_stopping=True)
        assert health.state == "broken"
        assert "an fsync failed" in str(health.reason)
        assert "hunter2" not in str(health)

    in_town(scene)


def test_a_store_that_is_away_says_since_when_until_it_is_back() -> None:
    async def scene(stage: Stage) -> None:
        stage.store.fault = StoreUnavailable("the database restarts")
        await stage.ask("one")
        await stage.pass_ms(100)
        began_at = stage.clock.now() - 100
        await stage.ask("two")
        seen = store_health(stage.engine, stage.clock.now())
        assert seen.state == "away"
        assert "the database restarts" in str(seen.reason)
        assert stage.engine.trouble is not None
        assert abs(stage.clock.now() - stage.engine.trouble[1] - began_at) <= 1, "since the first failure"
        stage.store.fault = None
        await stage.pass_ms(11_000)
        assert store_health(stage.engine, stage.clock.now()) == StoreHealth("ok"), "the engine looks by itself"

    engine_stage.play(scene)


def test_a_full_store_is_not_away() -> None:
    async def scene(stage: Stage) -> None:
        stage.store.fault = StoreFull("no room")
        await stage.ask("one")
        assert store_health(stage.engine, stage.clock.now()).state == "full"
        stage.store.fault = None

    engine_stage.play(scene)


def test_a_due_event_that_waits_for_its_turn_is_overdue() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: None
        for number in range(200):
            await stage.schedule(f"e{number}")
        await stage.pass_ms(3_000)
        assert len(stage.receiver.open) == 128
        assert 2_500 <= stage.engine.overdue_ms() <= 3_500

    engine_stage.play(scene)


def test_the_disk_is_looked_at_where_there_is_one(tmp_path: Path) -> None:
    assert disk_health("memory:", 1) is None
    fine = disk_health(f"rocksdb:{tmp_path}", 1)
    assert fine is not None
    assert (fine.ok, fine.reason) == (True, None)
    short = disk_health(f"rocksdb:{tmp_path}", 1 << 60)
    assert short is not None
    assert not short.ok
    assert "make room" in str(short.reason)
    missing = disk_health(f"rocksdb:{tmp_path}/missing", 1)
    assert missing is not None
    assert not missing.ok


def test_a_queue_without_a_worker_is_told_without_its_name() -> None:
    async def scene(town: Town) -> None:
        (resident,) = await town.grow("a")
        await schedule_seen(resident.ask, "shop", [town.draft("e", 0, to="queue:mail")])
        health = health_of(resident)
        assert health.queues == QueuesHealth(True, 0)
        await asyncio.sleep(61)
        health = health_of(resident)
        assert health.state == "ready", "a restart would not bring a worker"
        assert health.queues is not None
        assert (health.queues.ok, health.queues.stalled) == (False, 1)
        assert "no worker has called for a minute" in str(health.queues.reason)
        assert "mail" not in str(health)
        assert values(render(resident.engine))["everbell_queues_without_worker"] == 1
        assert values(render(resident.engine))['everbell_queue_waiting_events{tenant="shop",queue="mail"}'] == 1

    in_town(scene)
