"""The log in memory on virtual time. All other tests of it are in `tests/conformance/test_log.py`."""

from __future__ import annotations

import asyncio

from everbell.logs.memory import SharedLog
from everbell.testing.virtual import VirtualClock, run_virtual


def test_leases_and_waits_follow_virtual_time() -> None:
    async def main(_: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        log, other = (shared := SharedLog()).handle(), shared.handle()
        await log.renew("a/1", 5_000)
        await asyncio.sleep(4.999)
        assert await other.lives("a/1")
        await asyncio.sleep(0.002)
        assert not await other.lives("a/1")
        await log.wait(0, 3_600)
        assert loop.time() > 3_600

    run_virtual(main)


def test_the_end_of_a_lease_is_noticed_on_time_after_months() -> None:
    async def main(_: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        log = SharedLog().handle()
        # Where a float of seconds cannot tell nanoseconds apart any more.
        await asyncio.sleep(200 * 86_400.1)
        before_s = loop.time()
        await log.renew("a/1", 1_234)
        await log.ended("a/1")
        assert 1.234 <= loop.time() - before_s < 1.24

    run_virtual(main)


def test_a_shorter_renewal_is_noticed() -> None:
    async def main(_: VirtualClock) -> None:
        log = SharedLog().handle()
        await log.renew("a/1", 60_000)
        told = asyncio.create_task(log.ended("a/1"))
        await asyncio.sleep(1)
        await log.renew("a/1", 1_000)
        await told
        assert asyncio.get_running_loop().time() < 3

    run_virtual(main)
