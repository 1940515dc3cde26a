"""Nodes on a real Cassandra that holds both store and log: nodes die, and so does Cassandra. All acknowledged events
arrive, in order per key, under epochs that never go back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet, epochs_go_back
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import PATIENCE_S, Answer, Machine, until
from tests.acceptance.receiver import Receiver
from tests.services import shared
from tests.services.cassandra import CassandraServer

EVENTS = 240
SHAPE = Shape(EVENTS, clients=4, lead_ms=2_000, own_ids=0.25)
QUICK = "--lease", "4s"
# A take-over waits for the longest timeout of a request before it retries deliveries of the dead node.
PATIENT = "[defaults]\ntimeout = '1s'\n"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "everbell.toml"
    path.write_text(PATIENT)
    return str(path)


def judge(load: Load, fleet: Fleet, receiver: Receiver) -> None:
    """All events arrive, and the checker finds no violation."""
    load.finish()
    load.drain()
    assert load.violations() == []
    assert epochs_go_back(receiver.received) == []
    for machine in fleet.nodes.values():
        assert "Traceback" not in machine.log, machine.log


def _ask(machine: Machine) -> Answer:
    return machine.call("POST", "/v1/tenants/other/events", {"to": "queue:later", "payload": {}, "in": "1h"})


def test_a_cluster_runs_with_cassandra_as_store_and_log(tmp_path: Path, config: str) -> None:
    store = shared.cassandra().fresh_store()
    with Receiver(1) as receiver, Fleet(tmp_path, store, *QUICK, "--config", config) as fleet:
        fleet.grow("n1", "n2", "n3")
        load = Load(fleet, receiver, SHAPE, 1)  # type: ignore[arg-type]  # A load uses a fleet as a machine.
        load.start()
        load.until_acknowledged(EVENTS // 4)
        fleet.kill("n2")
        judge(load, fleet, receiver)
        fleet.nodes.pop("n2")
        fleet.until_balanced("n1", "n3")


def test_a_frozen_or_killed_cassandra_delays_events_and_loses_none(tmp_path: Path, config: str) -> None:
    with ExitStack() as running:
        server = running.enter_context(shared.had(CassandraServer))
        receiver = running.enter_context(Receiver(2))
        fleet = running.enter_context(Fleet(tmp_path, server.fresh_store(), *QUICK, "--config", config))
        fleet.add("n1")  # It creates the tables, which takes seconds.
        fleet.add("n2")
        load = Load(fleet, receiver, SHAPE, 2)  # type: ignore[arg-type]
        load.start()
        load.until_acknowledged(EVENTS // 4)
        fleet.disturbances += 2
        server.pause()
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(_ask, fleet.nodes["n1"]) for _ in range(4)]
            assert next(as_completed(asked)).result().status == 503
            server.resume()
        load.finish()
        fleet.disturbances += 2
        server.kill()
        server.start()
        # The server is slow to start, and a node that has lost its lease needs time to join again.
        until(lambda: _ask(fleet.nodes["n1"]).status == 201, "back", 4 * PATIENCE_S)
        judge(load, fleet, receiver)
        fleet.until_balanced("n1", "n2")
