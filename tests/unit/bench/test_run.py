from __future__ import annotations

import pytest

from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Figure, Goal
from everbell.bench.run import MEASUREMENTS, Measurement, measure
from everbell.bench.scale import QUICK
from everbell.bench.scene import Scene

SCENE = Scene(QUICK, None, None, None, None, lambda what, total: lambda done: None)


def figure(work: str) -> Figure:
    return Figure(Goal(work, "events/s"), 1)


def making(work: str) -> Measurement:
    return lambda scene: [figure(work)]


def test_rounds_alternate_and_long_measurements_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ingest", "late", "pending"):
        monkeypatch.setitem(MEASUREMENTS, name, making(name))

    made = list(measure(["ingest", "pending", "late"], SCENE, 2))

    assert made == [figure(name) for name in ("ingest", "pending", "late", "ingest", "late")]


def test_a_round_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(scene: Scene) -> list[Figure]:
        raise BenchFailed("the server ended")

    monkeypatch.setitem(MEASUREMENTS, "ingest", fail)
    monkeypatch.setitem(MEASUREMENTS, "late", making("late"))

    assert list(measure(["ingest", "late"], SCENE, 1)) == ["ingest: the server ended", figure("late")]
