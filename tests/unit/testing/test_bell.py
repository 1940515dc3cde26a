"""Everbell on virtual time, as its users use it: the fixture `bell` of the plugin."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from everbell.core.occurrence import Occurrence
from everbell.errors import EverbellError
from everbell.testing import VirtualBell, VirtualClock, run_virtual

HOOK = "https://shop.example/hook"


async def test_days_pass_in_no_time(bell: VirtualBell) -> None:
    began = bell.now
    await bell.schedule({"user": 7}, to=HOOK, in_="3d")
    await bell.advance("2 days")
    assert bell.delivered == []
    await bell.advance("1 day")
    assert [(each.payload, each.at - began) for each in bell.delivered] == [({"user": 7}, timedelta(days=3))]


@pytest.mark.parametrize("seconds", [0, 1, 30, 120, 600, 3_600, 3_601, 5_400, 86_400, 259_200])
async def test_an_event_due_at_the_end_of_an_advance_has_rung(bell: VirtualBell, seconds: int) -> None:
    for rounds in range(1, 5):
        await bell.schedule(rounds, to=HOOK, in_=seconds)
        await bell.advance(seconds)
        assert [each.payload for each in bell.delivered] == list(range(1, rounds + 1))


async def test_a_receiver_answers_as_the_test_says(bell: VirtualBell) -> None:
    bell.answer(HOOK, 503, "timeout", "lost")
    scheduled = await bell.schedule(1, to=HOOK, in_="1s")
    await bell.advance("1h")
    assert [each.outcome.result for each in bell.attempts] == ["failed", "timeout", "lost", "delivered"]
    assert (await bell.get(scheduled.id)).status == "delivered"


async def test_a_refusal_is_for_good(bell: VirtualBell) -> None:
    bell.answer(HOOK, 410)
    scheduled = await bell.schedule(1, to=HOOK, in_="1s")
    await bell.advance("1 week")
    assert (await bell.get(scheduled.id)).status == "dead"
    assert len(bell.attempts) == 1


async def test_handlers_are_called(bell: VirtualBell) -> None:
    got: list[object] = []

    @bell.on("reminders")
    async def remind(event: Occurrence) -> None:
        await asyncio.sleep(3_600)
        got.append((event.payload, bell.now))

    await bell.schedule(7, to="handler:reminders", in_="20m")
    await bell.advance(timedelta(minutes=20))
    assert got == []
    await bell.advance("1 hour")
    assert got == []  # Its deadline of ten seconds has passed long before.


async def test_recurring_events_ring_on_time(bell: VirtualBell) -> None:
    await bell.schedule("report", to=HOOK, at=datetime(2026, 1, 1, 9, tzinfo=UTC), repeat={"every": "1d", "count": 3})
    await bell.advance_to(datetime(2026, 1, 31, tzinfo=UTC))
    assert [each.at.day for each in bell.delivered] == [1, 2, 3]
    with pytest.raises(EverbellError, match="time does not go back"):
        await bell.advance_to(datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_cancelled_event_does_not_ring(bell: VirtualBell) -> None:
    scheduled = await bell.schedule(1, to=HOOK, in_="1h")
    await bell.advance("59 minutes")
    await bell.cancel(scheduled.id)
    await bell.advance("1 day")
    assert bell.attempts == []


def test_without_the_fixture_a_block_gives_the_bell_itself() -> None:
    async def main(clock: VirtualClock) -> list[object]:
        # Type checkers must see a VirtualBell here; that is part of the test.
        async with VirtualBell() as bell:
            await bell.schedule(1, to=HOOK, in_="3d")
            await bell.advance("3 days")
            return [each.payload for each in bell.delivered]

    assert run_virtual(main) == [1]


def test_on_real_time_the_error_recommends_the_fixture() -> None:
    async def main() -> None:
        with pytest.raises(EverbellError, match="fixture `bell`"):
            await VirtualBell().start()

    asyncio.run(main())


def test_a_start_can_be_chosen_and_answers_are_checked() -> None:
    bell = VirtualBell(start=datetime(2030, 5, 1, tzinfo=UTC))
    assert bell._start_at == 1_903_824_000_000
    with pytest.raises(EverbellError, match="no answer"):
        bell.answer(HOOK, "maybe")
