"""Virtual time: it jumps, it is repeatable, and it detects deadlocks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from everbell.clock import SystemClock
from everbell.core.time import DAY_MS, HOUR_MS
from everbell.errors import InvalidInput
from everbell.testing import VirtualClock, run_virtual
from everbell.testing.virtual import START_AT, Deadlock


def test_time_jumps_to_the_next_timer() -> None:
    async def main(clock: VirtualClock) -> list[int]:
        times = [clock.now()]
        for pause_s in (0.001, 3_600, 365 * 86_400):
            await asyncio.sleep(pause_s)
            times.append(clock.now() - START_AT)
        return times

    assert run_virtual(main) == [START_AT, 1, 3_600_001, 365 * 86_400_000 + 3_600_001]


def test_tasks_wake_in_the_order_of_their_timers() -> None:
    async def main(clock: VirtualClock) -> list[int]:
        woken: list[int] = []

        async def sleep(number: int) -> None:
            await asyncio.sleep(number * 100)
            woken.append(number)

        await asyncio.gather(*map(sleep, (3, 1, 2)))
        return woken

    assert run_virtual(main) == [1, 2, 3]


def test_a_clock_that_is_set_leaves_the_timers_alone() -> None:
    async def main(clock: VirtualClock) -> int:
        clock.offset_ms -= 5_000
        await asyncio.sleep(1)
        return clock.now()

    assert run_virtual(main, start_at=10_000) == 6_000


def test_no_millisecond_is_lost_to_rounding() -> None:
    async def main(clock: VirtualClock) -> None:
        for number in range(1, 5_000):
            await asyncio.sleep(0.001)
            assert clock.now() == START_AT + number

    run_virtual(main)


def test_a_deadlock_is_an_error_and_not_a_wait() -> None:
    async def main(clock: VirtualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main)


def test_results_and_exceptions_of_a_program_are_passed_on() -> None:
    async def fails(clock: VirtualClock) -> None:
        raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        run_virtual(fails)


def test_virtual_time_may_start_now_or_at_a_given_time() -> None:
    async def main(clock: VirtualClock) -> int:
        return clock.now()

    assert abs(run_virtual(main, start="now") - SystemClock().now()) < HOUR_MS
    assert run_virtual(main, start="1970-01-01T00:00:01Z") == 1_000
    assert run_virtual(main, start=datetime(1970, 1, 2, tzinfo=UTC)) == DAY_MS
    with pytest.raises(InvalidInput, match="has no time zone"):
        run_virtual(main, start=datetime(1970, 1, 2))  # noqa: DTZ001 # this is refused
