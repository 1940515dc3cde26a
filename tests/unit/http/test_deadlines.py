from __future__ import annotations

import asyncio
from collections.abc import Callable

from everbell.http.deadlines import Deadlines, Expiring
from tests.unit.http.scripted_server import Clock, Play, on_both_loops

pytestmark = on_both_loops


class Alarm(Expiring):
    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring

    def expire(self) -> None:
        self._ring()


def test_entries_expire_in_order_and_not_early(play: Play) -> None:
    async def scenario() -> None:
        clock, rung = Clock(), list[str]()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        for name, at_s in (("c", 1_003), ("a", 1_001), ("b", 1_002), ("a2", 1_001)):
            deadlines.add(Alarm(lambda name=name: rung.append(name)), at_s)  # type: ignore[misc]

        clock.now_s = 1_000.999
        deadlines.sweep()
        assert rung == []
        clock.now_s = 1_001.011
        deadlines.sweep()
        assert rung == ["a", "a2"]
        clock.now_s = 1_009
        deadlines.sweep()
        assert rung == ["a", "a2", "b", "c"]
        deadlines.close()

    play(scenario)


def test_an_entry_that_left_does_not_expire(play: Play) -> None:
    async def scenario() -> None:
        clock, rung = Clock(), list[str]()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        second = Alarm(lambda: rung.append("second"))

        def first_takes_second_along() -> None:
            rung.append("first")
            second.bucket.pop(second, None)

        deadlines.add(Alarm(first_takes_second_along), 1_001)
        deadlines.add(second, 1_001)
        clock.now_s = 1_002
        deadlines.sweep()
        second.bucket.pop(second, None)
        assert rung == ["first"]
        deadlines.close()

    play(scenario)


def test_an_expiry_may_add_another_deadline(play: Play) -> None:
    async def scenario() -> None:
        clock, rung = Clock(), list[str]()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        again = Alarm(lambda: rung.append("again"))
        deadlines.add(Alarm(lambda: deadlines.add(again, 1_001.5)), 1_001)
        clock.now_s = 1_002
        deadlines.sweep()
        assert rung == ["again"]
        deadlines.close()

    play(scenario)


def test_one_that_fails_does_not_stop_the_clock(play: Play) -> None:
    async def scenario() -> None:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        failed: list[object] = []
        loop.set_exception_handler(lambda loop, context: failed.append(context["exception"]))
        clock = Clock()
        deadlines = Deadlines(loop, clock)
        deadlines.add(Alarm(lambda: [].pop()), 1_001)
        deadlines.add(Alarm(rung.set), 1_001)
        clock.now_s = 1_003
        deadlines.sweep()
        assert rung.is_set()
        assert [type(error) for error in failed] == [IndexError]
        deadlines.close()

    play(scenario)


def test_the_timer_is_armed_for_the_earliest(play: Play) -> None:
    async def scenario() -> None:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        deadlines = Deadlines(loop, loop.time)
        left = Alarm(rung.set)
        deadlines.add(Alarm(rung.set), loop.time() + 3_600)
        deadlines.add(left, loop.time() + 0.001)
        left.bucket.pop(left, None)
        started_at_s = loop.time()
        deadlines.add(Alarm(rung.set), started_at_s + 0.02)
        await rung.wait()
        assert loop.time() - started_at_s >= 0.02  # Never early; how late it was depends on the machine.
        deadlines.close()

    play(scenario)


def test_nothing_expires_after_closing(play: Play) -> None:
    async def scenario() -> None:
        clock, rung = Clock(), list[str]()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        deadlines.add(Alarm(lambda: rung.append("late")), 1_001)
        deadlines.close()
        deadlines.close()
        clock.now_s = 1_002
        deadlines.sweep()
        assert rung == []

    play(scenario)
