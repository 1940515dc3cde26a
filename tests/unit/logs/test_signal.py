from __future__ import annotations

import asyncio

from everbell.logs.signal import Signal
from everbell.testing.virtual import VirtualClock, run_virtual


def test_all_waiters_are_woken() -> None:
    async def main(_: VirtualClock) -> None:
        signal = Signal()
        waiting = [asyncio.create_task(signal.wait(signal.ticket(), 100)) for _ in range(3)]
        await asyncio.sleep(1)
        signal.ring()
        await asyncio.gather(*waiting)
        assert asyncio.get_running_loop().time() == 1

    run_virtual(main)


def test_a_ring_after_the_ticket_ends_the_wait_at_once() -> None:
    async def main(_: VirtualClock) -> None:
        signal = Signal()
        ticket = signal.ticket()
        signal.ring()
        await signal.wait(ticket, 100)
        assert asyncio.get_running_loop().time() == 0
        await signal.wait(signal.ticket(), 100)
        assert asyncio.get_running_loop().time() == 100
        await signal.wait(signal.ticket(), 0)

    run_virtual(main)


def test_a_cancelled_waiter_is_forgotten() -> None:
    async def main(_: VirtualClock) -> None:
        signal = Signal()
        task = asyncio.create_task(signal.wait(signal.ticket(), 100))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await signal.wait(signal.ticket(), 1)
        assert signal._waiting == []
        signal.ring()

    run_virtual(main)
