"""Every transition of the table is taken by some scene, and no scene takes another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from everbell.core.amendment import Amendment
from everbell.core.event import TRANSITIONS, Event, Repeat
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.tenant import Tenant
from everbell.core.time import HOUR_MS, MINUTE_MS
from everbell.engine.requests import Amend, Cancel, Redrive
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play

Scene = Callable[[Stage], Awaitable[None]]


async def behind_a_refused_head(stage: Stage, expires_ms: int | None = None) -> tuple[Event, Event]:
    """A dead head, and one that waits behind it in the store."""
    stage.receiver.answer = lambda delivery: REFUSED
    head = await stage.schedule("head", key="k")
    follower = await stage.schedule("follower", 10, key="k", expires_ms=expires_ms)
    await stage.pass_ms(1_000)
    assert await stage.status(follower) == "waiting"
    return head, follower


async def free_the_follower(stage: Stage, outcome: Outcome, expires_ms: int | None = None) -> None:
    """Let the one that waited be attempted from its line."""
    head, _ = await behind_a_refused_head(stage, expires_ms)
    stage.receiver.answer = lambda delivery: outcome
    await stage.engine.ask(Cancel("default", head.id))
    await stage.pass_ms(1_000)


async def deliver(stage: Stage) -> None:
    await stage.schedule("e", repeat=Repeat(1_000, 2))
    await stage.pass_ms(MINUTE_MS)


async def retry(stage: Stage) -> None:
    stage.receiver.answer = lambda delivery: FAILED if delivery.attempt == 1 else DELIVERED
    await stage.schedule("e")
    await stage.pass_ms(MINUTE_MS)


async def refuse(stage: Stage) -> None:
    await behind_a_refused_head(stage)


async def cancel(stage: Stage) -> None:
    event = await stage.schedule("e", HOUR_MS)
    await stage.engine.ask(Cancel("default", event.id))


async def expire(stage: Stage) -> None:
    stage.receiver.answer = lambda delivery: FAILED
    await stage.schedule("e", expires_ms=1)
    await stage.pass_ms(1_000)


async def move_a_waiting_one(stage: Stage) -> None:
    _, follower = await behind_a_refused_head(stage)
    await stage.engine.ask(Amend("default", follower.id, Amendment(due_at=stage.clock.now() + HOUR_MS), None))


async def change_a_waiting_one(stage: Stage) -> None:
    _, follower = await behind_a_refused_head(stage)
    await stage.engine.ask(Amend("default", follower.id, Amendment(payload=b"new"), None))


async def refuse_a_waiting_one(stage: Stage) -> None:
    await free_the_follower(stage, REFUSED)


async def deliver_a_waiting_one(stage: Stage) -> None:
    await free_the_follower(stage, DELIVERED)


async def cancel_a_waiting_one(stage: Stage) -> None:
    _, follower = await behind_a_refused_head(stage)
    await stage.engine.ask(Cancel("default", follower.id))


async def expire_a_waiting_one(stage: Stage) -> None:
    await free_the_follower(stage, FAILED, expires_ms=100)


async def redrive(stage: Stage) -> None:
    head, _ = await behind_a_refused_head(stage)
    await stage.engine.ask(Redrive("default", head.id))


async def cancel_a_dead_one(stage: Stage) -> None:
    head, _ = await behind_a_refused_head(stage)
    await stage.engine.ask(Cancel("default", head.id))


SCENES: dict[tuple[str, str], Scene] = {
    ("scheduled", "scheduled"): retry,
    ("scheduled", "waiting"): refuse,
    ("scheduled", "dead"): refuse,
    ("scheduled", "delivered"): deliver,
    ("scheduled", "cancelled"): cancel,
    ("scheduled", "expired"): expire,
    ("waiting", "scheduled"): move_a_waiting_one,
    ("waiting", "waiting"): change_a_waiting_one,
    ("waiting", "dead"): refuse_a_waiting_one,
    ("waiting", "delivered"): deliver_a_waiting_one,
    ("waiting", "cancelled"): cancel_a_waiting_one,
    ("waiting", "expired"): expire_a_waiting_one,
    ("dead", "scheduled"): redrive,
    ("dead", "cancelled"): cancel_a_dead_one,
}


def test_the_scenes_cover_the_table() -> None:
    assert SCENES.keys() == TRANSITIONS


@pytest.mark.parametrize("transition", sorted(SCENES), ids="->".join)
def test_the_transition_is_taken_and_no_other_than_the_table_has(transition: tuple[str, str]) -> None:
    async def scene(stage: Stage) -> None:
        await SCENES[transition](stage)

        taken = stage.store.transitions()
        assert transition in taken
        assert taken <= TRANSITIONS

    play(scene, tenants=[Tenant(retry=RetryPolicy(3, 1_000, 1_000))])
