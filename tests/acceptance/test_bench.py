"""`everbell bench`, tiny: it measures with real processes and removes its files. Speed is not tested."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.processes import EVERBELL, quiet_environment
from tests.services import shared

_PATIENCE_S = 120


def bench(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [*EVERBELL, "bench", *options],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        env=quiet_environment() | {"TMPDIR": str(folder)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_shows_the_baseline_beside_each_figure(tmp_path: Path) -> None:
    out = bench(tmp_path, "--quick", "--events", "2000", "--only", "ingest")

    assert "bulk ingest over HTTP, durable" in out
    assert "bare RocksDB" in out
    assert "--gateways 1:" in out
    assert not os.listdir(tmp_path), "the benchmark did not remove its directories"


@pytest.mark.parametrize("name", ["whole", "single", "late", "pull", "push", "preview", "recurring", "guarded"])
def test_each_measurement_runs(tmp_path: Path, name: str) -> None:
    report = json.loads(bench(tmp_path, "--events", "500", "--gateways", "0", "--json", "--only", name))

    assert all(figure["value"] > 0 for figure in report["figures"])
    assert not os.listdir(tmp_path)


def test_a_database_is_measured_beside_bare_copy(tmp_path: Path) -> None:
    url = shared.postgres().fresh_database()
    report = json.loads(
        bench(tmp_path, "--events", "2000", "--gateways", "0", "--json", "--only", "postgres", "--postgres", url)
    )

    assert [figure["baselines"][0]["what"] for figure in report["figures"]] == [
        "bare COPY, the same rows",
        "bare COPY, then DELETE",
    ]
    assert all(figure["value"] > 0 for figure in report["figures"])


def test_the_cassandra_benchmark_reports_the_size_of_its_partitions(tmp_path: Path) -> None:
    url = shared.cassandra().url
    report = json.loads(bench(tmp_path, "--events", "2000", "--json", "--only", "shards", "--cassandra", url))

    (figure,) = report["figures"]
    assert 0 < figure["value"] <= 1_000
    assert "Cassandra counts 2,000 events" in figure["notes"][0]
    assert "max_partition_size" in figure["notes"][1]


def test_kafka_is_measured_beside_a_bare_loop(tmp_path: Path) -> None:
    url = shared.kafka().url
    report = json.loads(bench(tmp_path, "--events", "2000", "--json", "--only", "kafka", "--kafka", url))

    (figure,) = report["figures"]
    assert figure["baselines"][0]["what"] == "bare loop: consume and produce"
    assert figure["value"] > 0
    assert not os.listdir(tmp_path)


def test_the_outbox_is_measured_beside_the_same_transactions_without_it(tmp_path: Path) -> None:
    url = shared.postgres().url
    report = json.loads(bench(tmp_path, "--events", "1000", "--json", "--only", "outbox", "--postgres", url))

    transactions, late, collecting = report["figures"]
    assert transactions["baselines"][0]["what"] == "the same transactions without an event"
    assert late["lateness"]["count"] == 1_000
    assert late["lateness"]["earliest_ms"] >= 0
    assert collecting["value"] > 0
    assert not os.listdir(tmp_path)


def test_replicas_are_measured_beside_bare_processes(tmp_path: Path) -> None:
    url = shared.postgres().fresh_database()
    report = json.loads(bench(tmp_path, "--events", "1000", "--json", "--only", "replicas", "--postgres", url))

    bulk, single, late, killed, *_, cost = report["figures"]
    assert [baseline["value"] > 0 for baseline in bulk["baselines"]] == [True, True]
    assert single["lateness"]["count"] == 1_000
    assert late["lateness"]["earliest_ms"] >= 0
    assert killed["lateness"]["earliest_ms"] >= 0
    assert cost["value"] > 0
    assert not os.listdir(tmp_path)
