"""The files in deploy/ fit the code: metrics that exist, settings that exist, files that can be read."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from everbell.cluster.cluster import Cluster
from everbell.cluster.settings import ClusterSettings
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.kafka.metrics import render_kafka
from everbell.kafka.readers import Readers
from everbell.logs.memory import SharedLog
from everbell.node.metrics import render
from everbell.node.settings import SETTINGS
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_NAME = re.compile(r"\beverbell_[a-z_]+")


def metrics() -> set[str]:
    """The names of all metrics of a node."""

    async def main(clock: VirtualClock) -> str:
        entropy = SeededEntropy(1)
        engine = await Engine.start(MemoryStore(4), {}, Tenants(), clock, entropy, epochs={})
        cluster = await Cluster.start(SharedLog().handle(), engine, clock, entropy, ClusterSettings(), print)
        text = render(engine, cluster, render_kafka(Readers()))
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


def test_the_dashboard_can_be_read() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) > 10
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


def test_the_image_has_every_extra_that_a_server_can_use() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {
        re.split(r"[<>=!~ \[]", package, maxsplit=1)[0]
        for name, packages in extras.items()
        if name not in ("dev", "docs", "bench")
        for package in packages
    }
    lock = (ROOT / "requirements/image.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    assert wanted - locked == set(), "add its --extra to image.lock in the Makefile, and run make lock"
    assert "requirements/image.lock" in (DEPLOY / "Dockerfile").read_text()


def test_every_setting_of_the_containers_exists() -> None:
    named = set(re.findall(r"\bEVERBELL_[A-Z_]+", (DEPLOY / "compose.yaml").read_text()))
    assert named - {setting.variable for setting in SETTINGS} == set()
