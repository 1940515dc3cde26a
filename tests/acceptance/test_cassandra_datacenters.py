"""Two datacentres of real Cassandra nodes, with nodes of Everbell in both: all of them start on an empty keyspace; then
one datacentre is lost, and comes back.

The larger datacentre has the majority, so the cluster continues without the smaller. Requests of tenants that need
every
datacentre are refused meanwhile, and no event is lost; other tenants continue. All acknowledged events are delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from everbell.stores.cassandra.store import CassandraStore
from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import PATIENCE_S, Answer, Machine, now_ms, until
from tests.acceptance.receiver import Receiver
from tests.services import shared
from tests.services.cassandra import CassandraCluster

SLOW = 4 * PATIENCE_S
"""Three servers of this size are slow on a small machine."""
MADE = (200, 201)
"""If the answer to a request was lost, the event may exist: the next request finds it and gets 200."""
CONFIG = """
[defaults]
timeout = '1s'
[tenants.careful]
consistency = 'EACH_QUORUM'
[tenants.quick]
consistency = 'LOCAL_QUORUM'
"""


@pytest.fixture(scope="module")
def cassandra() -> Iterator[CassandraCluster]:
    with shared.had(lambda: CassandraCluster({"dc1": 2, "dc2": 1})) as cluster:
        yield cluster


def schedule(machine: Machine, receiver: Receiver, tenant: str, name: str, lead_ms: int) -> Answer:
    event = {"id": name, "to": receiver.url("/ok"), "payload": name, "in": f"{lead_ms}ms"}
    return machine.call("POST", f"/v1/tenants/{tenant}/events", event)


def until_scheduled(machine: Machine, receiver: Receiver, tenant: str, name: str, lead_ms: int) -> None:
    """Schedule an event, again and again until that succeeds: a write may time out, and the id makes a retry safe."""
    until(lambda: schedule(machine, receiver, tenant, name, lead_ms).status in MADE, f"{name} is scheduled", SLOW)


def rung(receiver: Receiver) -> set[str]:
    return {each.id for each in receiver.received}


def test_many_stores_may_open_an_empty_keyspace_at_once(cassandra: CassandraCluster) -> None:
    urls = [cassandra.url(datacenter) for datacenter in ("dc1", "dc2")] * 3
    with ThreadPoolExecutor(len(urls)) as threads:
        stores = list(threads.map(lambda url: CassandraStore(url, patience_s=SLOW), urls))
    assert {(store.partitions, store.epoch) for store in stores} == {(256, 0)}

    # A node has a folder for each table that it ever knew, with the table's id. If two tables of one name were created,
    # one of them is dropped later, with its content.
    def folders() -> set[frozenset[str]]:
        return {frozenset(path.name for path in (node.folder / "data/everbell").iterdir()) for node in cassandra.nodes}

    until(lambda: len(folders()) == 1, "all nodes have the same tables")
    (tables,) = folders()
    names = [table.rpartition("-")[0] for table in tables]
    assert sorted(names) == sorted(set(names))


def test_a_lost_datacenter_refuses_only_tenants_that_need_all_datacenters(
    tmp_path: Path, cassandra: CassandraCluster
) -> None:
    config = tmp_path / "everbell.toml"
    config.write_text(CONFIG)
    with ExitStack() as running:
        receiver = running.enter_context(Receiver(1))
        fleet = running.enter_context(Fleet(tmp_path, cassandra.url("dc1"), "--lease", "6s", "--config", str(config)))
        for name, zone in (("a1", "dc1"), ("a2", "dc1"), ("b1", "dc2")):
            fleet.add(name, "--zone", zone, "--store", cassandra.url(zone))
        fleet.until_balanced("a1", "a2", "b1")
        acknowledged = set()
        for number, tenant in product(range(12), ("careful", "quick")):
            machine = fleet.nodes[("a1", "a2", "b1")[number % 3]]
            until_scheduled(machine, receiver, tenant, f"{tenant}-{number}", 15_000)
            acknowledged.add(f"{tenant}-{number}")

        lost_at = now_ms()
        for node in cassandra.of("dc2"):
            node.kill()
        fleet.kill("b1")
        machine = fleet.nodes["a1"]
        # Tenants of one datacentre continue.
        until_scheduled(machine, receiver, "quick", "quick-later", 1_000)
        refused = until(lambda: _refused(machine, receiver), "tenants of all datacentres are refused", SLOW)
        assert refused is not None
        assert "not enough replicas" in refused.json["detail"]
        until(lambda: acknowledged | {"quick-later"} <= rung(receiver), "all acknowledged events are delivered", SLOW)

        for node in cassandra.of("dc2"):
            node.start()
        # All datacentres are back.
        until_scheduled(machine, receiver, "careful", "careful-again", 0)
        fleet.nodes["b1"].start()
        until(lambda: "careful-again" in rung(receiver), "it rings", SLOW)
        assert "careful-lost" not in rung(receiver), f"refused after {lost_at}, and delivered"


def _refused(machine: Machine, receiver: Receiver) -> Answer | None:
    answer = schedule(machine, receiver, "careful", "careful-lost", 0)
    return answer if answer.status == 503 and b"replicas" in answer.body else None
