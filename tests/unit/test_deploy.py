"""The files in deploy/ fit the code: metrics that exist, settings that exist, files that can be read."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from everbell.cluster.cluster import Cluster
from everbell.cluster.settings import ClusterSettings
from everbell.core.access import EVERY_TENANT, key_of
from everbell.core.cluster.view import ReplicasView
from everbell.core.health import DiskHealth
from everbell.core.process_report import ProcessReport
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.kafka.metrics import render_kafka
from everbell.kafka.readers import Readers
from everbell.logs.memory import SharedLog
from everbell.node.metrics import render, render_disk
from everbell.node.node import BROKEN_EXIT, CORRUPT_EXIT, HALTED_EXIT
from everbell.node.process_reports import ProcessReports
from everbell.node.replica_metrics import render_replicas
from everbell.node.settings import SETTINGS, load
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROCESSES = ProcessReports().metrics(ProcessReport())
_NAME = re.compile(r"\beverbell_[a-z_]+")


def metrics() -> set[str]:
    """The names of all metrics of a node."""

    async def main(clock: VirtualClock) -> str:
        entropy = SeededEntropy(1)
        engine = await Engine.start(MemoryStore(4), {}, Tenants(), clock, entropy, epochs={})
        cluster = await Cluster.start(SharedLog().handle(), engine, clock, entropy, ClusterSettings(), print)
        replicas = ReplicasView(0, {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())
        more = [*render_replicas(replicas), *PROCESSES]
        text = render(engine, cluster, [*render_kafka(Readers()), *render_disk(DiskHealth(True, 1, 1)), *more])
        await cluster.stop(1)
        return text

    names = set(re.findall(r"^# TYPE (\S+) ", run_virtual(main), re.MULTILINE))
    return names | {f"{name}_bucket" for name in names}


def test_every_metric_of_the_dashboard_and_the_alerts_exists() -> None:
    known = metrics()
    for file in ("grafana.json", "alerts.yaml"):
        named = set(_NAME.findall((DEPLOY / file).read_text()))
        assert named, file
        assert named - known == set(), file


def test_prometheus_sends_an_access_key_from_a_file_that_compose_mounts() -> None:
    scrape = (DEPLOY / "prometheus.yaml").read_text()
    (file,) = re.findall(r"credentials_file: (\S+)}", scrape)
    assert f":{file}:ro" in (DEPLOY / "compose.yaml").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "Stalled",
        "NothingStarts",
        "LoopBlocked",
        "LeaseLost",
        "DiskLow",
        "QueueWithoutWorker",
        "QueueLate",
        "Late",
        "DeadEvents",
        "Unauthorized",
    ],
)
def test_there_is_an_alert_for_every_way_to_fail_silently(name: str) -> None:
    assert f"alert: Everbell{name}\n" in (DEPLOY / "alerts.yaml").read_text()


def test_the_dashboard_can_be_read() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) > 10
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


FRAMEWORKS = ("anyio", "django", "fastapi", "flask", "sqlalchemy", "starlette")
"""The extras of programs that use Everbell. A server does not use them."""


def test_the_image_has_every_extra_that_a_server_can_use() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {
        re.split(r"[<>=!~ \[]", package, maxsplit=1)[0]
        for name, packages in extras.items()
        if name not in {"dev", "docs", "bench", "security", *FRAMEWORKS}
        for package in packages
    }
    lock = (ROOT / "requirements/image.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    assert wanted - locked == set(), "add its --extra to image.lock in the Makefile, and run make lock"
    assert "requirements/image.lock" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize("file", ["compose.yaml", "kubernetes/statefulset.yaml"])
def test_every_setting_of_the_containers_exists(file: str) -> None:
    named = set(re.findall(r"\bEVERBELL_[A-Z_]+", (DEPLOY / file).read_text()))
    assert named - {setting.variable for setting in SETTINGS} == set()


def test_the_settings_on_kubernetes_are_accepted() -> None:
    settings = load({"bootstrap_key": "key"}, {}, str(DEPLOY / "kubernetes/everbell.toml"))
    assert settings.host == "0.0.0.0"


def test_the_service_restarts_only_where_that_helps() -> None:
    codes = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", (ROOT / "docs/operating.md").read_text(), re.MULTILINE)
    unit = (DEPLOY / "everbell.service").read_text()
    assert {BROKEN_EXIT, CORRUPT_EXIT, HALTED_EXIT} < {int(code) for code, _ in codes}
    final = " ".join(code for code, advice in codes if advice == "not loop")
    assert f"RestartPreventExitStatus={final}\n" in unit


def test_the_guide_to_kubernetes_makes_a_valid_access_key() -> None:
    [script] = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    made = subprocess.run(["bash", "-c", f"{script}\necho $operator_key"], capture_output=True, text=True, check=True)
    assert key_of(made.stdout.strip(), EVERY_TENANT, ("admin",), 0).is_operator
