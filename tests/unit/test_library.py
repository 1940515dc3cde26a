"""The library through its life: started, closed and started again, with handlers of every kind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable

import pytest

from everbell.core.occurrence import Occurrence
from everbell.core.tenant import Tenant
from everbell.library import Everbell
from everbell.testing import VirtualClock, run_virtual

IMPATIENT = Tenant("default", timeout_ms=1_000)


class Signal:
    """That a handler got as far as this. A plain function returns `give()`, to have it awaited on the loop."""

    def __init__(self) -> None:
        self._given = asyncio.Event()

    async def give(self) -> None:
        self._given.set()

    async def seen(self) -> None:
        await asyncio.wait_for(self._given.wait(), 10)
        self._given.clear()


def test_started_again_in_another_loop_it_runs_plain_functions() -> None:
    bell = Everbell("memory:")
    signals: list[Signal] = []

    @bell.on("plain")
    def plain(event: Occurrence) -> Awaitable[None]:
        return signals[-1].give()

    async def main() -> None:
        signals.append(Signal())
        async with bell:
            await bell.schedule(to="handler:plain", in_=0)
            await signals[-1].seen()

    asyncio.run(main())
    asyncio.run(main())


def test_started_again_it_watches_deadlines() -> None:
    async def main(clock: VirtualClock) -> None:
        bell = Everbell("memory:", policies=(IMPATIENT,), clock=clock)
        signal = Signal()

        @bell.on("quick")
        async def quick(event: Occurrence) -> None:
            await signal.give()

        @bell.on("slow")
        async def slow(event: Occurrence) -> None:
            if event.attempt == 1:
                await asyncio.Event().wait()
            await signal.give()

        async with bell:
            await bell.schedule(to="handler:quick", in_=0)
            await signal.seen()
        async with bell:
            await bell.schedule(to="handler:slow", in_=0, id="slow")
            await signal.seen()
            assert (await bell.get("slow")).attempts[0].result == "timeout"

    run_virtual(main)


def test_started_again_it_is_well() -> None:
    async def main(clock: VirtualClock) -> None:
        bell = Everbell("memory:", clock=clock)
        async with bell:
            bell._halt(RuntimeError("the log is gone"))
            assert (await bell.health()).state == "broken"
        async with bell:
            assert (await bell.health()).state == "ready"

    run_virtual(main)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("exits", "SystemExit: bad arguments"), ("latin-1", r"FileNotFoundError: caf\udce9.txt")],
)
def test_the_exception_of_a_handler_is_stored_and_harms_nothing_else(name: str, reason: str) -> None:
    async def main() -> None:
        bell = Everbell("memory:")
        signal = Signal()

        @bell.on("exits")
        @bell.on("latin-1")
        def fail_at_first(event: Occurrence) -> Awaitable[None]:
            if event.attempt > 1:
                return signal.give()
            if event.id == "exits":
                sys.exit("bad arguments")
            raise FileNotFoundError("caf\udce9.txt")

        async with bell:
            await bell.schedule(to=f"handler:{name}", in_=0, id=name, retry={"backoff": "1ms"})
            await signal.seen()
            stored = (await bell.get(name)).attempts[0].reason or ""
            assert stored.partition(" [")[0] == reason
            assert (await bell.health()).state == "ready"

    asyncio.run(main())


def test_an_idempotency_key_schedules_an_event_once() -> None:
    async def main() -> None:
        async with Everbell("memory:") as bell:
            first = await bell.schedule(to="queue:mail", in_="1h", idempotency_key="order-17")
            again = await bell.schedule(to="queue:mail", in_="1h", idempotency_key="order-17")
            assert again.id == first.id

    asyncio.run(main())
