"""Events for handlers that are registered later: they wait, use up no attempts, and then go out at once."""

from __future__ import annotations

import asyncio

import pytest

from everbell.core.occurrence import Occurrence
from everbell.core.tenant import Tenant
from everbell.engine.settings import EngineSettings
from everbell.library import Everbell
from everbell.testing import VirtualBell, VirtualClock, run_virtual


class Heard:
    """The events that a handler got, with the attempt of each."""

    def __init__(self) -> None:
        self.payloads: list[object] = []
        self.attempts: list[int] = []

    async def __call__(self, event: Occurrence) -> None:
        self.payloads.append(event.payload)
        self.attempts.append(event.attempt)


def handler_of(heard: Heard) -> object:
    async def handle(event: Occurrence) -> None:
        await heard(event)

    return handle


async def test_an_event_waits_for_its_handler_for_days_and_goes_out_when_it_is_registered(bell: VirtualBell) -> None:
    one = await bell.schedule(1, to="handler:late", in_="1s", retry={"max_attempts": 1})
    await bell.advance("3 days")
    event = await bell.get(one.id)
    assert event.status == "scheduled"
    assert event.attempt_count == 0
    assert event.why is not None
    assert event.why.code == "no-handler"
    assert "waits for handler:late" in event.why.sentence
    heard = Heard()
    bell.on("late")(handler_of(heard))  # type: ignore[type-var]  # it is a coroutine function
    await asyncio.sleep(0.001)
    assert heard.attempts == [1]
    await bell.advance("1s")
    assert (await bell.get(one.id)).status == "delivered"


async def test_other_handlers_go_on_meanwhile(bell: VirtualBell) -> None:
    heard = Heard()
    bell.on("here")(handler_of(heard))  # type: ignore[type-var]
    await bell.schedule(1, to="handler:late", in_="1s")
    await bell.schedule(2, to="handler:here", in_="2s")
    await bell.advance("1 minute")
    assert heard.payloads == [2]


async def test_the_order_of_a_key_holds_while_its_handler_is_missing(bell: VirtualBell) -> None:
    for number in range(200):
        await bell.schedule(number, to="handler:late", in_=f"{number + 1}s", key="one")
    await bell.advance("1 hour")
    heard = Heard()
    bell.on("late")(handler_of(heard))  # type: ignore[type-var]
    await bell.advance("10s")
    assert heard.payloads == list(range(200))
    assert set(heard.attempts) == {1}


async def test_a_pause_that_ends_starts_nothing_without_a_handler(bell: VirtualBell) -> None:
    one = await bell.schedule(1, to="handler:late", in_="1s", retry={"max_attempts": 1})
    await bell.add_pause("tenant")
    await bell.advance("10s")
    await bell.end_pause("tenant")
    await bell.advance("10s")
    assert (await bell.get(one.id)).status == "scheduled"


@pytest.mark.parametrize(("check_s", "waited_s"), [(None, 5), (60.0, 60)])
def test_a_handler_that_a_thread_registered_is_found_by_the_next_check(check_s: float | None, waited_s: int) -> None:
    async def main(clock: VirtualClock) -> None:
        settings = EngineSettings() if check_s is None else EngineSettings(handler_check_s=check_s)
        bell = Everbell("memory:", policies=(Tenant("default"),), settings=settings, clock=clock)
        heard = Heard()
        async with bell:
            await bell.schedule(1, to="handler:late", in_=0)
            await asyncio.sleep(1)
            # As if it were registered outside the loop, without a word to the engine.
            bell._handlers.register("late", handler_of(heard))  # type: ignore[arg-type]
            await asyncio.sleep(waited_s - 2)
            assert heard.payloads == []
            await asyncio.sleep(2.1)
            assert heard.payloads == [1]

    run_virtual(main)


def test_events_for_a_missing_handler_take_a_bounded_part_of_memory() -> None:
    async def main(clock: VirtualClock) -> None:
        settings = EngineSettings(memory_bytes=1_000_000)
        bell = Everbell("memory:", settings=settings, clock=clock)
        heard, others = Heard(), Heard()
        bell.on("here")(handler_of(others))  # type: ignore[type-var]
        async with bell:
            for _ in range(20):
                await bell.schedule_many([{"to": "handler:late", "in": 1, "payload": "x"} for _ in range(100)])
            await asyncio.sleep(10)
            engine = bell._engine
            assert engine is not None
            assert engine.memory.budget.free_bytes > 800_000
            await bell.schedule(2, to="handler:here", in_=0)
            await asyncio.sleep(1)
            assert others.payloads == [2]
            bell.on("late")(handler_of(heard))  # type: ignore[type-var]
            await asyncio.sleep(10)
            assert len(heard.payloads) == 2_000

    run_virtual(main)
