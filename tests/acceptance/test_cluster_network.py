"""Three nodes in network namespaces of their own, some cut off from the log, the database or each other, in both
directions or in one. A node that cannot renew its lease stops by its own clock, although it could still reach every
receiver and, if the log is in ZooKeeper, the store. The other nodes take over, and it comes back by itself. Nodes that
cannot reach only each other keep the partitions that they own.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from everbell.core.ids import partition_in
from tests.acceptance.fleet import Fleet, epochs_go_back
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import Machine, now_ms, until
from tests.acceptance.network import DATABASE, EVERYWHERE, LOG, SERVICES, Network, require_namespaces
from tests.acceptance.receiver import Receiver
from tests.services import shared

EVENTS = 900
SHAPE = Shape(EVENTS, clients=4, lead_ms=2_000)
NODES = "n1", "n2", "n3"
PATIENT = "[defaults]\ntimeout = '1s'\n"


class HousedMachine(Machine):
    """A node in its own namespace."""

    def __init__(self, folder: Path, entrance: list[str], *options: str) -> None:
        super().__init__(folder, *options)
        self._entrance = entrance

    def begin(self, *wrapper: str) -> None:
        super().begin(*self._entrance, *wrapper)


class SpreadFleet(Fleet):
    """Nodes, each in its own namespace."""

    def __init__(self, folder: Path, network: Network, store: str, *options: str, log: str = "") -> None:
        super().__init__(folder, store, *options, log=log)
        self._network = network

    def machine(self, name: str, *options: str) -> Machine:
        address = self._network.address(name)
        return HousedMachine(
            self._folder / name,
            self._network.inside(name),
            *self._options,
            *("--node", name, "--listen", f"{address}:8420", "--peers-listen", f"{address}:8421"),
            *options,
        )


@pytest.fixture
def network() -> Iterator[Network]:
    require_namespaces()
    shared.postgres()  # Started before, so that the shared servers run outside the network.
    shared.zookeeper()
    with Network(*NODES) as network:
        network.bridge(shared.postgres().port)
        network.bridge(shared.zookeeper().port, LOG)
        yield network


@pytest.fixture
def fleet(tmp_path: Path, network: Network, log: str) -> Iterator[SpreadFleet]:
    config = tmp_path / "everbell.toml"
    config.write_text(PATIENT)
    store = shared.postgres().fresh_schema().replace("127.0.0.1", DATABASE)
    log_url = shared.zookeeper().fresh_path().replace("127.0.0.1", LOG) if log == LOG else ""
    options = ["--lease", "1s", "--config", str(config), "--insecure", "--allow-targets", EVERYWHERE]
    fleet = SpreadFleet(tmp_path, network, store, *options, log=log_url)
    with fleet:
        yield fleet


@contextmanager
def cut(network: Network, *ways: tuple[str, str]) -> Iterator[None]:
    for way in ways:
        network.cut(*way)
    try:
        yield
    finally:
        for way in ways:
            network.heal(*way)


def judge(load: Load, fleet: Fleet, receiver: Receiver) -> None:
    """All events arrive, and the checker finds no violation."""
    load.finish()
    load.drain()
    assert load.violations() == []
    assert epochs_go_back(receiver.received) == []
    for machine in fleet.nodes.values():
        assert "Traceback" not in machine.log, machine.log


def the_cut(network: Network, kind: str, log: str) -> list[tuple[str, str]]:
    node, others = network.address("n3"), [network.address("n1"), network.address("n2")]
    match kind:
        case "nothing comes or goes":
            servers = {DATABASE, log}
            return [way for other in (*servers, *others) for way in ((node, other), (other, node))]
        case "nothing reaches the log":
            return [(node, log)]
        case _:
            return [(log, node)]


@pytest.mark.parametrize("log", [DATABASE, LOG], ids=["postgresql", "zookeeper"])
@pytest.mark.parametrize("kind", ["nothing comes or goes", "nothing reaches the log", "no answers come"])
def test_a_node_that_cannot_renew_its_lease_stops_and_comes_back(
    fleet: SpreadFleet, network: Network, kind: str, log: str
) -> None:
    _cut_and_heal(fleet, network, the_cut(network, kind, log), "lost its lease")


@pytest.mark.parametrize("log", [LOG], ids=["zookeeper"])
def test_a_node_that_alone_lost_the_store_hands_over_and_comes_back(fleet: SpreadFleet, network: Network) -> None:
    node = network.address("n3")
    _cut_and_heal(fleet, network, [(node, DATABASE), (DATABASE, node)], "cannot reach the store, but other nodes can")


def _cut_and_heal(fleet: SpreadFleet, network: Network, ways: list[tuple[str, str]], says: str) -> None:
    with Receiver(1, SERVICES) as receiver:
        fleet.grow(*NODES)
        fleet.until_balanced(*NODES)
        load = Load(fleet, receiver, SHAPE, 1)  # type: ignore[arg-type]  # A load uses a fleet as a machine.
        load.start()
        load.until_acknowledged(EVENTS // 6)
        fleet.disturbances += 1
        with cut(network, *ways):
            fleet.until_balanced("n1", "n2")
            taken_over_at = now_ms()
            assert says in fleet.nodes["n3"].log, "the node did not stop before the others took over"
            load.until_acknowledged(EVENTS // 2)
            healed_at = now_ms()
        fleet.until_balanced(*NODES)
        judge(load, fleet, receiver)
        stale = [
            each
            for each in receiver.received
            if each.sender == network.address("n3") and taken_over_at <= each.began_at < healed_at
        ]
        assert stale == []
        assert any(each.sender == network.address("n3") for each in receiver.received)


@pytest.mark.parametrize("log", [DATABASE], ids=["postgresql"])
def test_nodes_that_cannot_reach_each_other_keep_their_partitions(fleet: SpreadFleet, network: Network) -> None:
    one, other = network.address("n1"), network.address("n2")
    with Receiver(2, SERVICES) as receiver:
        fleet.grow(*NODES)
        fleet.until_balanced(*NODES)
        load = Load(fleet, receiver, SHAPE, 2)  # type: ignore[arg-type]
        load.start()
        load.until_acknowledged(EVENTS // 4)
        before = _owners(fleet)
        names = _names_by_owner(fleet)
        asked = [name for some in names.values() for name in some]
        with cut(network, (one, other), (other, one)):
            status = dict(zip(asked, _put_all(fleet, asked, receiver), strict=True))
            assert {status[name] for name in names["n1"] + names["n3"]} == {201}
            assert {status[name] for name in names["n2"]} <= {503, 504}, "an unreachable owner has to give 503 or 504"
            assert _owners(fleet) == before, "a node was removed as dead"
        until(lambda: set(_put_all(fleet, asked, receiver)) <= {200, 201}, "the owner serves requests after the cut")
        assert _owners(fleet) == before
        for name in asked:
            assert fleet.nodes["n3"].call("DELETE", f"/v1/tenants/shop/events/{name}").status == 200
        judge(load, fleet, receiver)


def _names_by_owner(fleet: Fleet) -> dict[str, list[str]]:
    """A few ids of events for each node that owns them."""
    owners = [owner for owner, _ in _owners(fleet)]
    found: dict[str, list[str]] = {name: [] for name in NODES}
    for number in range(1_000):
        some = found[owners[partition_in({}, "shop", f"hourly-{number}", len(owners))]]
        if len(some) < 3:
            some.append(f"hourly-{number}")
    return found


def _put_all(fleet: Fleet, names: list[str], receiver: Receiver) -> list[int]:
    """Send all of them to the first node at once; returns the statuses."""
    body = {"to": receiver.url("/ok"), "in": "1h"}
    with ThreadPoolExecutor(len(names)) as clients:
        answers = clients.map(
            lambda name: fleet.nodes["n1"].call("PUT", f"/v1/tenants/shop/events/{name}", body), names
        )
        return [answer.status for answer in answers]


def _owners(fleet: Fleet) -> list[tuple[str, int]]:
    return [(part["owner"], part["epoch"]) for part in fleet.view("n3")["partitions"]]
