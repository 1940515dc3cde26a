"""Queues: leases, tokens, deadlines and workers that wait, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from everbell.channels.queue import Lease, QueueChannel
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.tenant import Tenant
from everbell.engine.supervisor import Supervisor
from everbell.entropy import SeededEntropy
from everbell.errors import Stopping
from everbell.testing import VirtualClock, run_virtual
from tests.unit.channels.fake_delivery import FakeDelivery

SHOP = Tenant("shop", lease_ms=30_000)
FAILED = Outcome("failed", "no")


class Queues:
    """A channel, and a short way to ask it for events of one queue."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.channel = QueueChannel(clock, SeededEntropy(7), Supervisor(lambda fault: None))
        self._made = 0

    def due(self, count: int = 1, queue: str = "work") -> list[FakeDelivery]:
        """Events become due."""
        made = []
        for _ in range(count):
            self._made += 1
            made.append(FakeDelivery(f"queue:{queue}", tenant=SHOP, id=f"e{self._made}", sequence=self._made))
        self.channel.start(made)
        return made

    async def lease(self, limit: int = 1, wait_ms: int = 0, lease_ms: int | None = None) -> list[Lease]:
        return await self.channel.lease("shop", "work", limit, wait_ms, lease_ms)

    def settle(self, *tokens: str, outcome: Outcome | None = None) -> list[str]:
        return self.channel.settle("shop", "work", dict.fromkeys(tokens, outcome))


def play(scene: Callable[[Queues], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        queues = Queues(clock)
        await scene(queues)
        await queues.channel.close()

    run_virtual(main)


def names(leases: list[Lease]) -> list[str]:
    return [lease.occurrence.id for lease in leases]


def test_an_attempt_begins_when_a_worker_asks() -> None:
    async def scene(queues: Queues) -> None:
        (delivery,) = queues.due()
        assert delivery.begun == 0
        assert queues.channel.depth("shop", "work") == 1

        (lease,) = await queues.lease()

        assert delivery.begun == 1
        assert lease.until_at == queues.clock.now() + SHOP.lease_ms
        assert (lease.occurrence.id, lease.occurrence.attempt) == ("e1", 1)
        assert queues.channel.depth("shop", "work") == 0

    play(scene)


def test_partitions_that_are_lost_while_attempts_begin_take_their_events_with_them() -> None:
    async def scene(queues: Queues) -> None:
        class Losing(FakeDelivery):
            def begin(self) -> bool:
                queues.channel.lose({self.event.partition})
                return False

        queues.channel.start([Losing("queue:work", tenant=SHOP, id=f"e{number}", sequence=number) for number in (1, 2)])
        assert await queues.lease() == []
        assert queues.channel.depth("shop", "work") == 0
        queues.due()
        assert len(await queues.lease()) == 1

    play(scene)


def test_events_are_leased_in_order_up_to_the_limit() -> None:
    async def scene(queues: Queues) -> None:
        queues.due(5)

        assert names(await queues.lease(3)) == ["e1", "e2", "e3"]
        assert names(await queues.lease(3)) == ["e4", "e5"]
        assert await queues.lease(3) == []

    play(scene)


def test_queues_and_tenants_are_apart() -> None:
    async def scene(queues: Queues) -> None:
        queues.due(1, "work")

        assert await queues.channel.lease("shop", "other", 1, 0, None) == []
        assert await queues.channel.lease("bank", "work", 1, 0, None) == []
        (lease,) = await queues.lease()
        assert queues.channel.settle("bank", "work", {lease.token: None}) == [lease.token]
        assert queues.channel.settle("shop", "other", {lease.token: None}) == [lease.token]
        assert queues.channel.extend("bank", "work", [lease.token], 1) == [lease.token]
        assert queues.settle(lease.token) == []

    play(scene)


def test_a_worker_settles_a_lease_only_once() -> None:
    async def scene(queues: Queues) -> None:
        done, failed = queues.due(2)
        one, other = await queues.lease(2)

        assert queues.settle(one.token) == []
        assert queues.settle(other.token, outcome=FAILED) == []
        assert (done.outcome, failed.outcome) == (DELIVERED, FAILED)
        assert queues.settle(one.token, other.token, "made.up.token") == [one.token, other.token, "made.up.token"]

    play(scene)


def test_a_lease_that_runs_out_is_lost_and_its_token_stale() -> None:
    async def scene(queues: Queues) -> None:
        (delivery,) = queues.due()
        (lease,) = await queues.lease(lease_ms=1_000)

        await asyncio.sleep(0.999)
        assert delivery.outcomes == []
        await asyncio.sleep(0.1)

        assert delivery.outcome.result == "lost"
        assert queues.settle(lease.token) == [lease.token]
        assert queues.channel.extend("shop", "work", [lease.token], 1_000) == [lease.token]

    play(scene)


def test_the_next_lease_of_the_same_event_has_another_token() -> None:
    async def scene(queues: Queues) -> None:
        (delivery,) = queues.due()
        (stale,) = await queues.lease(lease_ms=1_000)
        await asyncio.sleep(2)
        queues.channel.start([delivery])
        (lease,) = await queues.lease()

        assert lease.token != stale.token
        assert queues.settle(stale.token) == [stale.token]
        assert queues.settle(lease.token) == []

    play(scene)


@pytest.mark.parametrize(("lease_ms", "held_s"), [(5_000, 5.4), (200, 0.6)])
def test_a_lease_can_be_made_longer_or_shorter(lease_ms: int, held_s: float) -> None:
    async def scene(queues: Queues) -> None:
        (delivery,) = queues.due()
        (lease,) = await queues.lease(lease_ms=1_000)
        await asyncio.sleep(0.5)

        assert queues.channel.extend("shop", "work", [lease.token, "x"], lease_ms) == ["x"]

        await asyncio.sleep(held_s - 0.6)
        assert delivery.outcomes == []
        await asyncio.sleep(0.3)
        assert delivery.outcome.result == "lost"

    play(scene)


def test_an_event_given_back_by_a_worker_had_no_attempt() -> None:
    async def scene(queues: Queues) -> None:
        (delivery,) = queues.due()
        (lease,) = await queues.lease()

        assert queues.channel.give_back("shop", "work", [lease.token, "x"]) == ["x"]
        assert (delivery.given_back, delivery.outcomes) == (1, [])
        assert queues.settle(lease.token) == [lease.token]

    play(scene)


def test_events_that_are_gone_are_not_leased() -> None:
    async def scene(queues: Queues) -> None:
        deliveries = queues.due(3)
        deliveries[0].wanted = deliveries[1].wanted = False

        assert names(await queues.lease(1)) == ["e3"]

    play(scene)


def test_a_worker_that_waits_is_woken_by_the_first_event() -> None:
    async def scene(queues: Queues) -> None:
        asking = asyncio.ensure_future(queues.lease(10, wait_ms=20_000))
        await asyncio.sleep(5)
        assert not asking.done()
        queues.due(2)

        assert names(await asking) == ["e1", "e2"]

    play(scene)


def test_a_worker_that_waited_in_vain_gets_nothing() -> None:
    async def scene(queues: Queues) -> None:
        start_at = queues.clock.now()

        assert await queues.lease(wait_ms=20_000) == []
        assert queues.clock.now() == start_at + 20_000

    play(scene)


def test_workers_are_served_in_the_order_in_which_they_came() -> None:
    async def scene(queues: Queues) -> None:
        workers = []
        for _ in range(3):
            workers.append(asyncio.ensure_future(queues.lease(wait_ms=20_000)))
            await asyncio.sleep(0.1)

        for number, worker in enumerate(workers, start=1):
            queues.due()
            assert names(await worker) == [f"e{number}"]

    play(scene)


def test_an_event_is_not_lost_on_a_worker_that_hung_up() -> None:
    async def scene(queues: Queues) -> None:
        first = asyncio.ensure_future(queues.lease(wait_ms=20_000))
        second = asyncio.ensure_future(queues.lease(wait_ms=20_000))
        await asyncio.sleep(0.1)

        # When the one that would be woken goes away in the same moment.
        queues.due()
        first.cancel()

        assert names(await second) == ["e1"]

    play(scene)


def test_many_events_wake_many_workers() -> None:
    async def scene(queues: Queues) -> None:
        workers = [asyncio.ensure_future(queues.lease(wait_ms=20_000)) for _ in range(5)]
        await asyncio.sleep(0.1)
        queues.due(5)

        leases = [lease for leased in await asyncio.gather(*workers) for lease in leased]
        assert sorted(names(leases)) == ["e1", "e2", "e3", "e4", "e5"]

    play(scene)


def test_workers_that_were_woken_in_vain_are_woken_again() -> None:
    async def scene(queues: Queues) -> None:
        # Given three workers that are woken at once, while the first takes all events.
        greedy, *others = [asyncio.ensure_future(queues.lease(limit, wait_ms=20_000)) for limit in (10, 1, 1)]
        await asyncio.sleep(0.1)
        queues.due(3)
        assert len(await greedy) == 3
        await asyncio.sleep(1)

        # When more become due, then the others are still there.
        woken_at = queues.clock.now()
        queues.due(2)
        await asyncio.gather(*others)
        assert queues.clock.now() == woken_at

    play(scene)


def test_a_stop_sends_the_workers_home() -> None:
    async def scene(queues: Queues) -> None:
        workers = [asyncio.ensure_future(queues.lease(wait_ms=20_000)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await queues.channel.close()

        for worker in workers:
            with pytest.raises(Stopping):
                await worker
        with pytest.raises(Stopping):
            await queues.lease()

    play(scene)


def test_leases_that_have_ended_are_forgotten_before_their_time() -> None:
    async def scene(queues: Queues) -> None:
        # Given one lease that is held, beside many for a day that are acknowledged at once.
        queues.due()
        (kept,) = await queues.lease(lease_ms=86_400_000)
        for _ in range(40):
            queues.due(1_000)
            queues.settle(*(lease.token for lease in await queues.lease(1_000, lease_ms=86_400_000)))

        # Then few of them are remembered, and the one still runs out when its time is over.
        assert sum(len(tokens) for _, tokens in queues.channel._deadlines) <= 12_000
        assert queues.channel.extend("shop", "work", [kept.token], 60_000) == []
        await asyncio.sleep(61)
        assert queues.settle(kept.token) == [kept.token]

    play(scene)


def test_the_token_of_a_lease_cannot_be_guessed_from_another_one() -> None:
    async def scene(queues: Queues) -> None:
        queues.due(2)
        one, other = (lease.token for lease in await queues.lease(2))
        *place, nonce = one.split(".")
        assert other.split(".")[:-1] == place
        assert len(bytes.fromhex(nonce)) == 9
        assert nonce != other.split(".")[-1]

    play(scene)
