"""Commands get into the log in order, however often it is away."""

from __future__ import annotations

import asyncio

from everbell.cluster.appender import Appender, releases
from everbell.core.cluster import Drain, Release, Undrain, decode_command
from everbell.core.cluster.apply import PARTITIONS_MAX
from everbell.errors import LogBroken, LogUncertain
from everbell.logs.memory import MemoryLog, SharedLog
from everbell.testing import VirtualClock, run_virtual
from tests.unit.cluster.stage import MoodyLog

ONE, TWO, THREE = Drain("n1"), Undrain("n1"), Drain("n2")


def not_halted(reason: BaseException) -> None:
    raise AssertionError(f"nothing of this halts a node: {reason}")


def appended(shared: SharedLog) -> list[object]:
    return [decode_command(entry.data) for entry in shared.entries]


def test_commands_are_appended_in_order() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        appender = Appender(shared.handle(), not_halted)
        appender.append(ONE, TWO)
        appender.start()
        await asyncio.sleep(0.1)
        appender.append(THREE)
        await asyncio.sleep(0.1)
        assert appended(shared) == [ONE, TWO, THREE]
        await appender.stop()

    run_virtual(main)


def test_a_log_that_is_away_is_asked_again() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        log.is_away = True
        appender = Appender(log, not_halted)
        appender.start()
        appender.append(ONE)
        await asyncio.sleep(5)
        appender.append(TWO)
        log.is_away = False
        await asyncio.sleep(1)
        assert appended(log._shared) == [ONE, TWO]
        await appender.stop()

    run_virtual(main)


def test_an_append_is_repeated_after_its_answer_was_lost() -> None:
    class Uncertain(MemoryLog):
        losses = 2

        async def append(self, data: bytes) -> int:
            index = await super().append(data)
            if self.losses:
                self.losses -= 1
                raise LogUncertain("the answer was lost")
            return index

    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        appender = Appender(Uncertain(shared), not_halted)
        appender.start()
        appender.append(ONE, TWO)
        await asyncio.sleep(5)
        assert appended(shared) == [ONE, ONE, ONE, TWO]
        await appender.stop()

    run_virtual(main)


def test_releases_that_wait_become_one() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        appender = Appender(shared.handle(), not_halted)
        appender.append(*(Release("me", {partition: 7}) for partition in range(4)))
        appender.append(Release("me", {3: 9}), ONE, Release("me", {4: 7}), Release("other", {5: 7}))
        appender.start()
        await asyncio.sleep(0.1)
        assert appended(shared) == [
            Release("me", {0: 7}),  # It might have been on its way.
            Release("me", {1: 7, 2: 7, 3: 7}),
            Release("me", {3: 9}),
            ONE,
            Release("me", {4: 7}),
            Release("other", {5: 7}),
        ]
        await appender.stop()

    run_virtual(main)


def test_releases_of_the_most_partitions_that_there_can_be_fit_into_entries() -> None:
    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        appender = Appender(shared.handle(), not_halted)
        appender.append(ONE, *releases("n1/x", dict.fromkeys(range(PARTITIONS_MAX), 10**12)))
        appender.append(*(Release("n2/x", {number: 10**12}) for number in range(10_000)))
        appender.start()
        await asyncio.sleep(5)
        [_, *made] = appended(shared)
        for owner, count in (("n1/x", PARTITIONS_MAX), ("n2/x", 10_000)):
            own = [each for each in made if isinstance(each, Release) and each.owner == owner]
            assert sorted(number for each in own for number in each.epochs) == list(range(count))
        assert len(made) < 100
        await appender.stop()

    run_virtual(main)


def test_a_forgotten_command_is_not_appended_and_the_next_one_is() -> None:
    async def main(clock: VirtualClock) -> None:
        log = MoodyLog(SharedLog())
        log.is_away = True
        appender = Appender(log, not_halted)
        appender.start()
        appender.append(ONE, TWO)
        await asyncio.sleep(0.1)
        appender.forget()
        appender.append(THREE)
        log.is_away = False
        await asyncio.sleep(5)
        assert appended(log._shared) == [THREE]
        await appender.stop()

    run_virtual(main)


def test_forgetting_a_command_in_flight_affects_no_other() -> None:
    class Slow(MemoryLog):
        async def append(self, data: bytes) -> int:
            await asyncio.sleep(1)
            return await super().append(data)

    async def main(clock: VirtualClock) -> None:
        shared = SharedLog()
        appender = Appender(Slow(shared), not_halted)
        appender.start()
        appender.append(ONE, TWO)
        await asyncio.sleep(0.5)
        appender.forget()
        appender.append(THREE)
        await asyncio.sleep(5)
        assert appended(shared) == [ONE, THREE]
        await appender.stop()

    run_virtual(main)


def test_a_log_that_broke_halts_the_node() -> None:
    class Broken(MemoryLog):
        async def append(self, data: bytes) -> int:
            raise LogBroken("the disk failed")

    async def main(clock: VirtualClock) -> None:
        halted: list[BaseException] = []
        appender = Appender(Broken(SharedLog()), halted.append)
        appender.start()
        appender.append(ONE)
        await asyncio.sleep(1)
        assert [type(reason) for reason in halted] == [LogBroken]
        await appender.stop()

    run_virtual(main)
