"""Queues, workers and targets as a node sees them."""

from __future__ import annotations

from everbell.core.pause import Pause
from everbell.core.queue_view import QueueView, WorkerInfo
from everbell.core.target_view import TargetView
from everbell.core.tenant import BreakerPolicy, Tenant
from everbell.core.time import format_instant
from everbell.engine.requests import Acknowledge, Cancel, ExtendLeases, LeaseEvents
from everbell.engine.view_requests import GetQueues, GetTargets, NoteWorker
from tests.unit.engine.stage import FAILED, Stage, play

MAIL = "queue:mail"


async def queue(stage: Stage) -> QueueView:
    (view,) = (await stage.engine.ask(GetQueues("default"))).queues
    return view


async def target(stage: Stage) -> TargetView:
    (view,) = (await stage.engine.ask(GetTargets("default"))).targets
    return view


async def lease(stage: Stage, limit: int = 1) -> list[str]:
    leases = await stage.engine.ask(LeaseEvents("default", "mail", limit, 0, 300_000))
    return [each.token for each in leases]


def test_a_queue_has_its_depth_leases_throughput_and_workers() -> None:
    async def scene(stage: Stage) -> None:
        for name in ("one", "two", "three"):
            await stage.schedule(name, to=MAIL)
        await stage.pass_ms(5_000)
        worker = WorkerInfo("w1", "host-1", "1.0", ("mail", "sms"))
        await stage.engine.ask(NoteWorker("default", "mail", worker))
        tokens = await lease(stage, 2)
        await stage.engine.ask(Acknowledge("default", "mail", tokens[:1]))

        view = await queue(stage)
        assert (view.name, view.waiting, view.in_flight) == ("mail", 1, 1)
        assert view.oldest_wait_ms == 5_000
        assert (view.last_minute.delivered, view.last_minute.failed) == (1, 0)
        assert view.last_contact == format_instant(stage.clock.now())
        (seen,) = view.workers
        assert (seen.name, seen.host, seen.version, seen.queues) == ("w1", "host-1", "1.0", ("mail", "sms"))
        assert seen.last_contact == format_instant(stage.clock.now())
        assert not view.stalled

        await stage.pass_ms(11 * 60_000)
        assert (await queue(stage)).workers == (), "a worker that is silent for ten minutes is not listed"
        assert (await stage.engine.ask(GetQueues("other"))).queues == ()

    play(scene)


def test_a_queue_is_stalled_after_a_minute_without_a_worker() -> None:
    async def scene(stage: Stage) -> None:
        await stage.schedule("one", 30_000, to=MAIL)
        await stage.pass_ms(89_000)
        assert not (await queue(stage)).stalled
        await stage.pass_ms(2_000)
        assert (await queue(stage)).stalled
        assert stage.engine.observer.stalled() == [("default", "mail")]
        assert stage.engine.overdue_ms() == 61_000, "an event that waits for a worker is overdue"

        tokens = await lease(stage)
        await stage.schedule("two", to=MAIL)
        await stage.pass_ms(59_000)
        assert stage.engine.observer.stalled() == []
        await stage.engine.ask(ExtendLeases("default", "mail", tokens, 300_000))
        await stage.pass_ms(59_000)
        assert stage.engine.observer.stalled() == [], "a worker that is busy extends its leases"
        await stage.pass_ms(2_000)
        assert stage.engine.observer.stalled() == [("default", "mail")]

    play(scene)


def test_cancelled_and_paused_events_make_no_queue_stalled() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("one", to=MAIL)
        await stage.pass_ms(70_000)
        assert stage.engine.observer.stalled()
        await stage.engine.ask(Cancel("default", event.id))
        await stage.pass_ms(11_000)
        assert stage.engine.observer.stalled() == []
        assert (await queue(stage)).waiting == 0

        await stage.schedule("two", to=MAIL)
        await stage.pass_ms(70_000)
        pause = Pause("default", "queue", "mail", stage.clock.now(), "key-1", "a new release")
        stage.engine.pauses.follow([pause])
        view = await queue(stage)
        assert (view.waiting, view.stalled) == (1, False)
        assert view.paused is not None
        assert (view.paused.what, view.paused.by, view.paused.note) == ("queue", "key-1", "a new release")
        assert stage.engine.overdue_ms() == 0, "a paused queue is meant to wait"

    play(scene)


def test_a_target_has_its_load_its_limits_and_its_last_error() -> None:
    policy = Tenant(in_flight=2, rate=10.0, breaker=BreakerPolicy(failures=2, pause_ms=30_000))

    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: FAILED
        stage.receiver.takes_s = 0.04
        for name in ("one", "two", "three"):
            await stage.schedule(name)
        await stage.pass_ms(1_000)
        opened_at = stage.clock.now()

        view = await target(stage)
        assert view.target == "https://shop.example:443"
        assert (view.in_flight, view.cap) == (0, 2)
        assert view.last_minute.failed >= 2
        assert view.last_minute.p50_ms == 50, "the upper bound of 40 ms"
        assert view.last_error is not None
        assert (view.last_error.reason, view.last_error.code) == ("not now", 503)
        assert view.rate is not None
        assert view.rate.per_s == 10
        assert view.breaker is not None
        assert (view.breaker.state, view.breaker.failures) == ("open", 2)
        assert view.breaker.until is not None
        assert format_instant(opened_at + 28_000) < view.breaker.until <= format_instant(opened_at + 30_000)

    play(scene, tenants=[policy])
