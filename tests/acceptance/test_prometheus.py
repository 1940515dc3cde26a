"""The alerts in `deploy/`, judged by Prometheus: rule by rule with promtool, and with a real server that it scrapes."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from everbell import Client
from tests.acceptance.machine import until
from tests.acceptance.page_scene import REFUSED
from tests.acceptance.processes import PATIENCE_S, CommandLine, ServerProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yaml").read_text())

Series = dict[str, str]
"""Samples in steps of 30 s, in the notation of promtool, by series."""

HEALTHY: Series = {
    "everbell_cluster_is_member": "1x60",
    'everbell_cluster_partitions{state="unowned"}': "0x60",
    "everbell_cluster_lease_left_seconds": "2x60",
    "everbell_cluster_log_lag_seconds": "0.4x60",
    "everbell_cluster_takeovers_total": "3x60",
    "everbell_oldest_overdue_seconds": "0.2x60",
    'everbell_lateness_seconds_bucket{le="0.01"}': "0+300x60",
    'everbell_lateness_seconds_bucket{le="5"}': "0+300x60",
    'everbell_lateness_seconds_bucket{le="+Inf"}': "0+300x60",
    "everbell_disk_free_bytes": "5000x60",
    "everbell_disk_reserve_bytes": "1000x60",
    "everbell_queues_without_worker": "0x60",
    'everbell_queue_oldest_wait_seconds{tenant="shop",queue="mail"}': "2x60",
    "everbell_dead_total": "7x60",
    "everbell_retried_total": "0+30x60",
    "everbell_delivered_total": "0+300x60",
    'everbell_missed_occurrences_total{reason="late"}': "1x60",
    "everbell_starved_flows": "0x60",
    'everbell_pauses{what="queue"}': "0x60",
    'everbell_kafka_lag_records{topic="in"}': "40x60",
    "everbell_kafka_refused_total": "2x60",
    "everbell_kafka_letters_lost_total": "0x60",
    'everbell_loop_blocks_total{process="engine"}': "4x60",
    "everbell_unauthorized_total": "0+30x60",
    "everbell_stalled": "0x60",
    "everbell_replicas_bytes": "500x60",
    "everbell_replicas_bytes_max": "1000x60",
    "everbell_replicas_settled": "1x60",
    "everbell_replicas_forgotten_early_total": "2x60",
}
STILL = {f'everbell_lateness_seconds_bucket{{le="{le}"}}': "900x60" for le in ("0.01", "5", "+Inf")}
"""Nothing starts any more."""

# For each alert: the series that differ from those of a healthy node. The trouble begins after ten minutes or earlier.
TROUBLE: dict[str, tuple[Series, str]] = {
    "NodeOutOfCluster": ({"everbell_cluster_is_member": "1x20 0x40"}, "12m"),
    "PartitionsUnowned": ({'everbell_cluster_partitions{state="unowned"}': "0x20 4x40"}, "12m"),
    "Stalled": ({"everbell_oldest_overdue_seconds": "0x4 30+30x56", **STILL}, "12m"),
    "LeaseLost": ({"everbell_cluster_lease_left_seconds": "2x20 0x40"}, "12m"),
    "DiskLow": ({"everbell_disk_free_bytes": "5000x20 1900x40"}, "12m"),
    "QueueWithoutWorker": ({"everbell_queues_without_worker": "0x20 1x40"}, "12m"),
    "Late": ({'everbell_lateness_seconds_bucket{le="0.01"}': "0+300x20 6300+200x40"}, "25m"),
    "QueueLate": ({'everbell_queue_oldest_wait_seconds{tenant="shop",queue="mail"}': "2x20 400x40"}, "17m"),
    "DeadEvents": ({"everbell_dead_total": "7x20 9x40"}, "12m"),
    "OccurrencesMissed": ({'everbell_missed_occurrences_total{reason="late"}': "1x20 3x40"}, "12m"),
    "Retrying": ({"everbell_retried_total": "0+270x60"}, "20m"),
    "Takeovers": ({"everbell_cluster_takeovers_total": "3x20 7x40"}, "12m"),
    "LogLag": ({"everbell_cluster_log_lag_seconds": "0.4x20 6+30x40"}, "12m"),
    "UnmovedMemory": ({"everbell_starved_flows": "0x20 2x40"}, "27m"),
    "KafkaBehind": ({'everbell_kafka_lag_records{topic="in"}': "40x20 200000x40"}, "22m"),
    "KafkaRefused": ({"everbell_kafka_refused_total": "2x20 5x40"}, "12m"),
    "KafkaLettersLost": ({"everbell_kafka_letters_lost_total": "0x20 1x40"}, "12m"),
    "NothingStarts": ({"everbell_stalled": "0x20 1x40"}, "12m"),
    "LoopBlocked": ({'everbell_loop_blocks_total{process="engine"}': "4x20 6x40"}, "12m"),
    "Unauthorized": ({"everbell_unauthorized_total": "0+600x60"}, "20m"),
    "ReplicaMemory": ({"everbell_replicas_bytes": "500x20 950x40"}, "12m"),
    "ReplicasBehind": ({"everbell_replicas_settled": "1x20 0x40"}, "22m"),
    "ReplicasForgotten": ({"everbell_replicas_forgotten_early_total": "2x20 4x40"}, "12m"),
}

FORGOTTEN: Series = {'everbell_pauses{what="queue"}': "1x2920"}
"""This takes a day, and so has a test of its own with longer steps."""


def installed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        missing = pytest.fail if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1" else pytest.skip
        missing(f"{program} is not installed: make system installs it")
    return path


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(series: Series, at: str, names: list[str]) -> dict[str, Any]:
    """A test of promtool: at this time, these alerts fire and no others."""
    samples = [{"labels": f'{{alertname="Everbell{name}"}}', "value": 1} for name in names]
    return {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": at,
                "exp_samples": samples,
            }
        ],
    }


def test_every_alert_fires_in_its_trouble_and_no_other_does(tmp_path: Path) -> None:
    assert sorted(f"Everbell{name}" for name in [*TROUBLE, "ForgottenPause"]) == sorted(ALERTS)
    tests = [firing(HEALTHY, "29m", [])]
    tests += [firing({**HEALTHY, **series}, at, [name]) for name, (series, at) in TROUBLE.items()]
    # Where it fires later than its threshold is crossed, it is silent at first.
    tests += [firing({**HEALTHY, **TROUBLE[name][0]}, "10m10s", []) for name in ("Late", "QueueLate", "DiskLow")]
    # A stall ends with the first event that starts, and a busy backlog is none.
    tests.append(firing({**HEALTHY, "everbell_oldest_overdue_seconds": "600x60"}, "12m", []))
    check_rules(tmp_path, "10s", tests)
    check_rules(tmp_path, "5m", [firing({**HEALTHY, **FORGOTTEN}, "24h10m", ["ForgottenPause"])])


def check_rules(folder: Path, evaluation_interval: str, tests: list[dict[str, Any]]) -> None:
    rules = {"rule_files": [str(DEPLOY / "alerts.yaml")], "evaluation_interval": evaluation_interval, "tests": tests}
    (folder / "rules.yaml").write_text(json.dumps(rules))
    run(installed("promtool"), "test", "rules", str(folder / "rules.yaml"))


@contextmanager
def prometheus(folder: Path, server: str, key: str) -> Iterator[str]:
    """A Prometheus with the configuration in `deploy/`, for one server and with quicker scrapes; its address."""
    shutil.copy(DEPLOY / "alerts.yaml", folder)
    (folder / "metrics-key").write_text(key)
    text = (DEPLOY / "prometheus.yaml").read_text()
    for shipped, ours in (
        ("/etc/prometheus/metrics-key", str(folder / "metrics-key")),
        ('"n1:8420", "n2:8420", "n3:8420"', f'"{server.removeprefix("http://")}"'),
        ("_interval: 5s", "_interval: 1s"),
    ):
        assert shipped in text
        text = text.replace(shipped, ours)
    (folder / "prometheus.yaml").write_text(text)
    run(installed("promtool"), "check", "config", str(folder / "prometheus.yaml"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [installed("prometheus"), f"--config.file={folder}/prometheus.yaml"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def asked(url: str, path: str, **fields: str) -> Any:
    """The data of an answer of Prometheus; None while it does not answer yet."""
    try:
        with urlopen(f"{url}/api/v1/{path}?{urlencode(fields)}", timeout=PATIENCE_S) as response:
            return json.load(response)["data"]
    except URLError:
        return None


def value(url: str, query: str) -> float | None:
    found = asked(url, "query", query=query)
    return float(found["result"][0]["value"][1]) if found and found["result"] else None


def test_prometheus_reads_a_server_with_access_keys_and_raises_the_alarm(tmp_path: Path) -> None:
    options = ("--bootstrap-key", str(tmp_path / "key"), "--allow-targets", "127.0.0.0/8")
    with ServerProcess(tmp_path, *options) as server:
        operator = (tmp_path / "key").read_text().strip()
        # The key as the first lines of deploy/prometheus.yaml make it.
        arguments = ("keys", "create", "--all-tenants", "--scope", "read", "--note", "prometheus")
        made = CommandLine(server.url)(*arguments, "--token", operator)
        assert made.code == 0, made
        with prometheus(tmp_path, server.url, made.out) as url:
            until(lambda: value(url, "up") == 1, "Prometheus reads the metrics")
            until(lambda: value(url, "everbell_dead_total") == 0, "there is a first sample")
            with Client(server.url, tenant="shop", token=operator) as client:
                client.schedule(1, to=REFUSED, in_=0, retry={"max_attempts": 1})
            until(lambda: value(url, 'ALERTS{alertname="EverbellDeadEvents",alertstate="firing"}') == 1, "it fires")
            (alert,) = asked(url, "alerts")["alerts"]
            assert re.fullmatch(r"[\d.]+ events died in the last 15 minutes", alert["annotations"]["summary"])
            rules = [rule for group in asked(url, "rules")["groups"] for rule in group["rules"]]
            assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
            # Without a valid key there is nothing to read, and Prometheus says so.
            (tmp_path / "metrics-key").write_text("evk_wrong")
            until(lambda: value(url, "up") == 0, "the server refuses a wrong key")
            (target,) = asked(url, "targets")["activeTargets"]
            assert "401" in target["lastError"]
