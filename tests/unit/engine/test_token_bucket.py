"""Rate limits of targets, on virtual time."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import pytest

from everbell.core.tenant import Tenant
from everbell.core.time import DAY_MS
from everbell.engine.token_bucket import TokenBucket
from tests.unit.engine.stage import Stage, play


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0, 100.0, 2_500.0])
def test_no_second_gets_much_more_than_the_rate(rate: float) -> None:
    pace, now_ms, starts = TokenBucket(rate), 50, []
    while now_ms < 10_000:
        count = pace.allows(now_ms)
        pace.take(count)
        starts += [now_ms] * count
        now_ms += pace.wait_ms
    for first, start in enumerate(starts):
        assert bisect_left(starts, start + 1_000) - first <= rate + max(1, rate / 10)
    assert len(starts) >= rate * 9, "and it is used"


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9])
def test_with_the_least_of_rates_there_is_one_attempt_and_a_long_wait(rate: float) -> None:
    pace = TokenBucket(rate)
    pace.take(pace.allows(50))

    assert pace.allows(1_000) == 0
    assert pace.wait_ms == DAY_MS


def test_a_target_gets_its_rate_and_others_go_on() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(30):
            await stage.schedule(f"slow-{number}", tenant="slow")
            await stage.schedule(f"free-{number}", tenant="free")
        await stage.settled()
        assert sum(got.name.startswith("free") for got in stage.receiver.got) == 30
        assert sum(got.name.startswith("slow") for got in stage.receiver.got) == 1
        await stage.pass_ms(1_000)
        assert sum(got.name.startswith("slow") for got in stage.receiver.got) == 11
        await stage.pass_ms(2_000)
        slow = [got for got in stage.receiver.got if got.name.startswith("slow")]
        assert [got.name for got in slow] == [f"slow-{number}" for number in range(30)]
        assert slow[-1].at - slow[0].at == 2_900

    play(scene, tenants=[Tenant("slow", rate=10.0)])


def test_keys_keep_their_order_under_a_rate() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(6):
            await stage.schedule(f"{number}", tenant="slow", key="k")
        await stage.pass_ms(1_000)
        assert stage.receiver.names == ["0", "1", "2", "3", "4", "5"]
        times = [got.at for got in stage.receiver.got]
        assert all(later - earlier >= 100 for earlier, later in pairwise(times))

    play(scene, tenants=[Tenant("slow", rate=10.0)])


def test_a_rate_that_is_lifted_lets_everything_go_at_once() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(5):
            await stage.schedule(f"{number}", tenant="slow")
        await stage.settled()
        assert len(stage.receiver.got) == 1
        stage.tenants.override("slow", Tenant("slow"))
        stage.engine.adopt("slow")
        await stage.settled()
        assert len(stage.receiver.got) == 5

    play(scene, tenants=[Tenant("slow", rate=0.001)])
