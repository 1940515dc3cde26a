"""Three nodes and a database on links that lose, delay, repeat or swallow packets, on links that come and go, and with
two nodes that see each other only through the third. No promise may be broken, and nothing may stay broken afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.load import Load, Shape
from tests.acceptance.network import DATABASE, EVERYWHERE, SERVICES, require_namespaces
from tests.acceptance.receiver import Receiver
from tests.acceptance.rough_network import FAIR, RoughNetwork, Weather
from tests.acceptance.test_cluster_network import NODES, PATIENT, SpreadFleet, judge
from tests.services import shared

EVENTS = 400
SHAPE = Shape(EVENTS, clients=4, lead_ms=2_000)


@pytest.fixture
def network() -> Iterator[RoughNetwork]:
    require_namespaces()
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        missing = pytest.fail if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1" else pytest.skip
        missing("/dev/net/tun cannot be used here")
    shared.postgres()  # Started before, so that the shared server runs outside the network.
    with RoughNetwork(*NODES) as network:
        network.bridge(shared.postgres().port)
        yield network


@pytest.fixture
def fleet(tmp_path: Path, network: RoughNetwork) -> Iterator[SpreadFleet]:
    config = tmp_path / "everbell.toml"
    config.write_text(PATIENT)
    store = shared.postgres().fresh_schema().replace("127.0.0.1", DATABASE)
    options = ["--lease", "2s", "--config", str(config), "--insecure", "--allow-targets", EVERYWHERE]
    with SpreadFleet(tmp_path, network, store, *options) as fleet:
        yield fleet


@contextmanager
def trouble(network: RoughNetwork, kind: str) -> Iterator[None]:
    first, last = network.address("n1"), network.address("n3")
    both = ((first, last), (last, first))
    to_database = ((last, DATABASE), (DATABASE, last))
    match kind:
        case "loss":
            network.weather = Weather(loss=0.03)
        case "delay":
            network.weather = Weather(delay_s=0.03)
        case "duplication":
            network.weather = Weather(twice=0.3)
        case "bridge":
            for way in both:
                network.cut(*way)
        case "black hole between nodes":
            for way in both:
                network.spoil(*way, Weather(bytes_max=250))
        case _:
            for way in to_database:
                network.spoil(*way, Weather(bytes_max=700))
    try:
        yield
    finally:
        network.weather = FAIR
        for way in (*both, *to_database):
            network.heal(*way)


@pytest.mark.parametrize(
    "kind",
    ["loss", "delay", "duplication", "bridge", "black hole between nodes", "black hole before the database"],
)
def test_bad_links_break_no_promise(fleet: SpreadFleet, network: RoughNetwork, kind: str) -> None:
    with Receiver(1, SERVICES) as receiver:
        fleet.grow(*NODES)
        fleet.until_balanced(*NODES)
        load = Load(fleet, receiver, SHAPE, 1)  # type: ignore[arg-type]  # A load uses a fleet as a machine.
        load.start()
        load.until_acknowledged(EVENTS // 8)
        fleet.disturbances += len(NODES)  # A node that loses its lease on a bad link repeats its attempts.
        with trouble(network, kind):
            load.until_acknowledged(EVENTS // 2)
        fleet.until_balanced(*NODES)
        judge(load, fleet, receiver)
    assert network.repeated > 0 or kind != "duplication"
    assert network.lost > 0 or kind in ("delay", "duplication")


def test_a_flapping_link_breaks_no_promise(fleet: SpreadFleet, network: RoughNetwork) -> None:
    node = network.address("n3")
    ways = [way for other in (DATABASE, network.address("n1")) for way in ((node, other), (other, node))]
    with Receiver(2, SERVICES) as receiver:
        fleet.grow(*NODES)
        fleet.until_balanced(*NODES)
        load = Load(fleet, receiver, SHAPE, 2)  # type: ignore[arg-type]
        load.start()
        for number in range(1, 9):
            load.until_acknowledged(EVENTS * number // 16)
            fleet.disturbances += 1
            for way in ways:
                (network.cut if number % 2 else network.heal)(*way)
        fleet.until_balanced(*NODES)
        judge(load, fleet, receiver)
