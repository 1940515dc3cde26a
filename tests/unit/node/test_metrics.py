"""The engine's numbers as Prometheus reads them."""

from __future__ import annotations

import re

import pytest

from everbell.core.event import Course
from everbell.engine.requests import Cancel
from everbell.engine.tally import BOUNDS_MS
from everbell.node.metrics import render
from tests.unit.engine.stage import FAILED, REFUSED, Stage, play


def values(text: str) -> dict[str, float]:
    """Samples by name and labels; every line is a sample or a comment."""
    samples = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = re.fullmatch(r'([a-z_]+(?:\{[a-z]+="[^"]*"(?:,[a-z]+="[^"]*")*\})?) ([0-9.e+-]+)', line)
            assert match is not None, line
            samples[match[1]] = float(match[2])
    return samples


def test_schedules_outcomes_and_cancels_are_counted() -> None:
    async def scene(stage: Stage) -> None:
        answers = {b"refused": REFUSED, b"failed": FAILED}
        receive = stage.receiver.answer
        stage.receiver.answer = lambda delivery: answers.pop(delivery.event.payload, None) or receive(delivery)
        for name in ("fine", "refused", "failed"):
            await stage.schedule(name, 5)
        event = await stage.schedule("cancelled", 3_600_000)
        await stage.engine.ask(Cancel("default", event.id))
        await stage.pass_ms(60_000)

        numbers = values(render(stage.engine))
        assert numbers["everbell_scheduled_total"] == 4
        assert numbers["everbell_delivered_total"] == 2
        assert numbers["everbell_dead_total"] == 1
        assert numbers["everbell_retried_total"] == 1
        assert numbers["everbell_cancelled_total"] == 1
        assert numbers["everbell_in_flight"] == 0
        assert numbers["everbell_in_memory_bytes"] == 0
        assert numbers["everbell_oldest_overdue_seconds"] == 0
        assert numbers["everbell_epoch"] == 1
        assert numbers['everbell_pending_events{tenant="default"}'] == 0
        assert numbers['everbell_dead_events{tenant="default"}'] == 1

    play(scene)


def test_missed_and_skipped_occurrences_are_counted_by_reason() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.meter.count_occurrences(None, Course(fired=3, late=2))
        stage.engine.meter.count_occurrences(Course(fired=3, late=2), Course(fired=4, late=3, overlapped=5, gaps=1))
        stage.engine.meter.count_occurrences(None, None)

        numbers = values(render(stage.engine))
        assert numbers['everbell_missed_occurrences_total{reason="late"}'] == 3
        assert numbers['everbell_missed_occurrences_total{reason="paused"}'] == 0
        assert numbers['everbell_skipped_occurrences_total{reason="overlap"}'] == 5
        assert numbers['everbell_skipped_occurrences_total{reason="gap"}'] == 1

    play(scene)


def test_lateness_is_a_cumulative_histogram() -> None:
    async def scene(stage: Stage) -> None:
        for late_ms in (0, 1, 2, 70, 10**9):
            stage.engine.meter.tallies.of("default", "https://shop.example").count_started(late_ms, 1)

        numbers = values(render(stage.engine))
        labels = 'tenant="default",queue=""'
        name = "everbell_lateness_seconds"
        buckets = [numbers[f'{name}_bucket{{{labels},le="{ms / 1_000:g}"}}'] for ms in BOUNDS_MS]
        assert buckets == sorted(buckets)
        assert buckets[:3] == [2, 3, 3]
        assert numbers[f'{name}_bucket{{{labels},le="+Inf"}}'] == 5
        assert numbers[f"{name}_count{{{labels}}}"] == 5
        assert numbers[f"{name}_sum{{{labels}}}"] == pytest.approx(1_000_000.073)

    play(scene)


def test_every_metric_has_a_help_text_and_a_type() -> None:
    async def scene(stage: Stage) -> None:
        text = render(stage.engine)
        for name in {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}:
            family = re.sub(r"(?<=_seconds)_(bucket|sum|count)$", "", name)
            assert f"# HELP {family} " in text
            assert f"# TYPE {family} " in text

    play(scene)
