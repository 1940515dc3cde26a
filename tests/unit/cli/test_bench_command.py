from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from everbell.bench.figures import Baseline, Figure, Goal
from everbell.bench.run import MEASUREMENTS
from everbell.bench.scale import QUICK, Scale, scale_of
from everbell.bench.scene import Scene
from everbell.cli import bench
from everbell.cli.main import main
from everbell.cli.parser import FAILED, OK, USAGE

FIGURE = Figure(Goal("bulk ingest", "events/s", 80, 150), 100, (Baseline("bare RocksDB", 200),), 9.5, 80.0)


class Runs(list[tuple[Sequence[str], Scene, int]]):
    """The requested measurements, and their results."""

    results: Sequence[Figure | str] = (FIGURE,)

    def measure(self, names: Sequence[str], scene: Scene, rounds: int) -> Iterator[Figure | str]:
        self.append((names, scene, rounds))
        yield from self.results


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(bench, "measure", runs.measure)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    return runs


def test_everything_is_measured_unless_told_otherwise(runs: Runs) -> None:
    assert main(["bench"]) == OK

    names, scene, rounds = runs[0]
    assert list(names) == [
        name for name in MEASUREMENTS if name not in ("cassandra", "kafka", "outbox", "postgres", "replicas", "shards")
    ]
    assert (scene.scale, scene.gateways, rounds) == (Scale(), None, 1)


def test_options_narrow_it_down(runs: Runs) -> None:
    assert main(["bench", "--quick", "--only", "ingest", "--only", "late", "--gateways", "2"]) == OK
    assert main(["bench", "--events", "2000"]) == OK

    assert list(runs[0][0]) == ["ingest", "late"]
    assert (runs[0][1].scale, runs[0][1].gateways) == (QUICK, 2)
    assert runs[1][1].scale == scale_of(quick=False, events=2_000)


def test_a_table_is_printed(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--only", "ingest"])

    out = capsys.readouterr().out
    assert "cores of" in out
    assert "bulk ingest  100 events/s        80  150  ok   200   0.50     9.5      80" in out


def test_of_many_rounds_the_best_is_in_the_table_and_all_are_told(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.results = [replace(FIGURE, value=value) for value in (90, 120, 70)]

    main(["bench", "--only", "ingest", "--rounds", "3"])

    out = capsys.readouterr().out
    assert runs[0][2] == 3
    assert out.count("bulk ingest  ") == 1
    assert "bulk ingest  120 events/s" in out
    assert "the best of 90, 120, 70 events/s" in out


def test_json_is_one_document(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert document["figures"][0]["value"] == 100
    assert document["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nonsense"],
        ["--events", "0"],
        ["--events", "many"],
        ["--gateways", "-1"],
        ["--gateways", "65"],
        ["--rounds", "0"],
    ],
)
def test_a_wrong_option_is_refused(runs: Runs, arguments: list[str]) -> None:
    assert main(["bench", *arguments]) == USAGE
    assert not runs


def test_a_plot_that_cannot_be_drawn_says_why(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    assert main(["bench", "--plot", str(tmp_path / "figures.svg")]) != OK

    assert "everbell[bench]" in capsys.readouterr().err


def test_failed_measurements_are_reported_beside_the_others(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.results = (FIGURE, "herd: the server ended")

    assert main(["bench"]) == FAILED

    told = capsys.readouterr()
    assert "bulk ingest" in told.out
    assert told.err == "everbell bench: herd: the server ended\n"
