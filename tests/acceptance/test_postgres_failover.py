"""A database that fails over to its standby, and one that has no connections left, under a working cluster: the cluster
recovers by itself, and no acknowledged event is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet, epochs_go_back
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver
from tests.services import shared
from tests.services.postgres import PostgresServer, StandbyServer

EVENTS = 900
SHAPE = Shape(EVENTS, clients=4, lead_ms=2_000)
NODES = "n1", "n2", "n3"
PATIENT = "[defaults]\ntimeout = '1s'\n"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "everbell.toml"
    path.write_text(PATIENT)
    return str(path)


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, StandbyServer]]:
    """A primary, and a standby that must have every commit before the primary acknowledges it."""
    with ExitStack() as running:
        primary = running.enter_context(shared.had(PostgresServer))
        standby = running.enter_context(StandbyServer(primary))
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        yield primary, standby


def judge(load: Load, fleet: Fleet, receiver: Receiver) -> None:
    load.finish()
    load.drain()
    assert load.violations() == []
    assert epochs_go_back(receiver.received) == []
    for machine in fleet.nodes.values():
        assert "Traceback" not in machine.log, machine.log


def test_a_promoted_standby_has_all_acknowledged_events(
    tmp_path: Path, config: str, pair: tuple[PostgresServer, StandbyServer]
) -> None:
    primary, standby = pair
    # The standby is named first: a client that takes the first server that answers would get one that refuses writes.
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    url = primary.url.replace(f"127.0.0.1:{primary.port}", hosts)
    store = f"{url}?schema=everbell&target_session_attrs=read-write"
    with Receiver(1) as receiver, Fleet(tmp_path, store, "--lease", "1s", "--config", config) as fleet:
        fleet.grow(*NODES)
        load = Load(fleet, receiver, SHAPE, 1)  # type: ignore[arg-type]  # A load uses a fleet as a machine.
        load.start()
        load.until_acknowledged(EVENTS // 3)
        primary.kill()
        fleet.disturbances += len(NODES)
        until(lambda: _refuses(fleet.nodes["n1"]), "events are refused while no server accepts writes")
        standby.promote()
        judge(load, fleet, receiver)
        fleet.until_balanced(*NODES)


def test_a_cluster_waits_for_a_database_without_free_connections(tmp_path: Path, config: str) -> None:
    server = shared.postgres()
    server.execute("CREATE ROLE thrifty LOGIN PASSWORD 'thrifty'")
    server.execute("CREATE SCHEMA of_thrifty AUTHORIZATION thrifty")
    store = f"postgresql://thrifty:thrifty@127.0.0.1:{server.port}/postgres?schema=of_thrifty"
    with Receiver(2) as receiver, Fleet(tmp_path, store, "--lease", "1s", "--config", config) as fleet:
        fleet.grow(*NODES)
        load = Load(fleet, receiver, SHAPE, 2)  # type: ignore[arg-type]
        load.start()
        load.until_acknowledged(EVENTS // 3)
        server.execute("ALTER ROLE thrifty CONNECTION LIMIT 0")
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'thrifty'")
        fleet.disturbances += len(NODES)
        until(lambda: _refuses(fleet.nodes["n1"]), "events are refused while there are no connections")
        server.execute("ALTER ROLE thrifty CONNECTION LIMIT -1")
        judge(load, fleet, receiver)
        fleet.until_balanced(*NODES)


def _refuses(machine: Machine) -> bool:
    """Whether new events are refused, with a Retry-After header."""
    answer = machine.call("POST", "/v1/tenants/other/events", {"to": "queue:none", "in": "1d"})
    assert answer.status in (201, 503), answer
    return answer.status == 503 and int(answer.headers["retry-after"]) > 0
