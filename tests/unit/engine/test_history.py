"""The recent past of a node: spans that all nodes cut alike, kept for a day, and merged."""

from __future__ import annotations

import asyncio

from everbell.engine.history import KEPT, STEPS_MS, Gauges, Past, Sample, merged_past
from everbell.engine.tally import CANCELLED, DEAD, DELIVERED, DURATIONS, SCHEDULED, lateness_in
from everbell.engine.view_requests import GetPast
from tests.unit.engine.stage import REFUSED, Stage, play


async def past(stage: Stage, tenant: str | None = "default", *, hours: bool = False) -> Past:
    return await stage.engine.ask(GetPast(tenant, "hours" if hours else "minutes"))


def test_a_span_has_the_events_that_came_and_went_in_it() -> None:
    async def scene(stage: Stage) -> None:
        await stage.pass_ms(10_000 - stage.clock.now() % 10_000)
        began_at = stage.clock.now()
        for name in ("one", "two"):
            await stage.schedule(name, 2_000)
        await stage.schedule("later", 3_600_000)
        await stage.pass_ms(21_000)

        seen = await past(stage)
        samples = {sample.at: sample for sample in seen.samples}
        # After an idle time, the end of a span is met a little late.
        assert sum(sample.counts[SCHEDULED] for sample in seen.samples) == 3
        assert sum(sample.counts[DELIVERED] for sample in seen.samples) == 2
        assert sum(sum(lateness_in(sample.counts)) for sample in seen.samples) == 2
        assert samples[began_at + 10_000].counts[SCHEDULED] == 0
        assert samples[began_at + 10_000].end.pending == 1
        assert seen.now.pending == 1
        everything = {sample.at: sample.counts for sample in (await past(stage, None)).samples}
        assert all(everything[at] == sample.counts for at, sample in samples.items()), "one tenant is all tenants"
        assert (await past(stage, "other")).samples == []

    play(scene)


def test_the_dead_and_the_waiting_are_seen() -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        await stage.schedule("refused", 0)
        await stage.schedule("unserved", 0, to="queue:mail")
        await stage.pass_ms(25_000)

        seen = await past(stage)
        assert sum(sample.counts[DEAD] for sample in seen.samples) == 1
        assert (seen.now.waiting, seen.now.dead) == (1, 1)
        assert seen.now.oldest_ms == 25_000

    play(scene)


def test_memory_is_bounded_and_five_minutes_are_the_sum_of_their_parts() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(130):
            await stage.schedule(f"event-{number}", 0)
            await asyncio.sleep(15 * 60)

        minutes, hours = await past(stage), await past(stage, hours=True)
        assert len(minutes.samples) == KEPT["minutes"]
        assert len(hours.samples) == KEPT["hours"]
        for seen in (minutes, hours):
            times = [sample.at for sample in seen.samples]
            assert times == list(range(times[0], times[-1] + 1, seen.step_ms))
            assert times[0] % seen.step_ms == 0
        assert sum(sample.counts[DELIVERED] for sample in hours.samples) == KEPT["hours"] // 3

    play(scene)


def test_the_past_of_several_nodes_is_added_span_by_span() -> None:
    def sample(at: int, delivered: int, **gauges: int) -> Sample:
        counts = [0] * DURATIONS
        counts[DELIVERED] = delivered
        counts[CANCELLED] = 1
        return Sample(at, tuple(counts), Gauges(**gauges))

    step_ms = STEPS_MS["minutes"]
    one = Past(step_ms, [sample(0, 1), sample(step_ms, 2, waiting=1, oldest_ms=5, pending=9)], Gauges(in_flight=1))
    other = Past(step_ms, [sample(step_ms, 5, waiting=2, oldest_ms=3, pending=9)], Gauges(in_flight=2, pending=4))
    merged = merged_past([one, other], ["n3"])
    assert [(each.at, each.counts[DELIVERED]) for each in merged.samples] == [(0, 1), (step_ms, 7)]
    assert merged.samples[1].end == Gauges(3, 0, 5, 9), "both nodes count one store"
    assert merged.now == Gauges(in_flight=3, pending=4)
    assert merged.unheard == ("n3",)
