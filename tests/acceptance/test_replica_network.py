"""Three nodes that hold events in memory, in network namespaces of their own, one cut off from the others and from the
log, in both directions or in one. Both sides take and deliver events, and agree when the cut has healed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.machine import Answer, Machine, until
from tests.acceptance.network import EVERYWHERE, LOG, SERVICES, Network, require_namespaces
from tests.acceptance.receiver import Receiver
from tests.acceptance.replica_stage import policy, until_delivered, until_in_step
from tests.acceptance.test_cluster_network import NODES, SpreadFleet, cut
from tests.services import shared

COUNT = 30
EVENTS_PATH = "/v1/tenants/shop/events"


@pytest.fixture
def network() -> Iterator[Network]:
    require_namespaces()
    shared.zookeeper()  # Started before, so that the shared server runs outside the network.
    with Network(*NODES) as network:
        network.bridge(shared.zookeeper().port, LOG)
        yield network


@pytest.fixture
def fleet(tmp_path: Path, network: Network) -> Iterator[SpreadFleet]:
    log = shared.zookeeper().fresh_path().replace("127.0.0.1", LOG)
    options = ("--lease", "1s", "--config", policy(tmp_path), "--insecure", "--allow-targets", EVERYWHERE)
    with SpreadFleet(tmp_path, network, "replicas:", *options, log=log) as fleet:
        yield fleet
        for machine in fleet.nodes.values():
            assert "Traceback" not in machine.log, machine.log


def schedule(machine: Machine, receiver: Receiver, event_id: str, ack: str, lead: str = "1s") -> Answer:
    replicas = {"count": 3, "skew": "1s", "ack": ack}
    event = {"id": event_id, "to": receiver.url("/ok"), "in": lead, "replicas": replicas}
    return machine.call("POST", EVENTS_PATH, event)


def ways(network: Network, kind: str) -> list[tuple[str, str]]:
    """The directions in which packets between n3 and the other nodes are dropped, and those between n3 and the log."""
    node, others = network.address("n3"), [network.address("n1"), network.address("n2")]
    match kind:
        case "both ways":
            return [way for other in (*others, LOG) for way in ((node, other), (other, node))]
        case "nothing leaves":
            return [(node, other) for other in others]
        case _:
            return [(other, node) for other in others]


@pytest.mark.parametrize("kind", ["both ways", "nothing leaves", "nothing comes"])
def test_both_sides_of_a_cut_take_and_deliver_events_and_agree_afterwards(
    fleet: SpreadFleet, network: Network, kind: str
) -> None:
    with Receiver(1, SERVICES) as receiver:
        fleet.grow(*NODES)
        until_in_step(fleet, *NODES)
        n1, n3 = fleet.nodes["n1"], fleet.nodes["n3"]
        held = [f"held-{number}" for number in range(COUNT)]
        for event_id in held:
            assert schedule(n1, receiver, event_id, "all", "6s").status == 201
        assert schedule(n1, receiver, "far", "all", "1h").status == 201
        assert schedule(n1, receiver, "after", "all", "1h").status == 201

        with cut(network, *ways(network, kind)):
            sides = {"n3": [network.address("n3")], "n1": [network.address("n1"), network.address("n2")]}
            until_delivered_by(receiver, held, sides)
            assert schedule(n1, receiver, "majority", "majority").status == 201
            assert schedule(n3, receiver, "alone", "one").status == 201
            refused = schedule(n3, receiver, "refused", "majority", "1h")
            assert refused.status == 503, refused
            assert "held by 1 of 3" in refused.json["detail"]
            until_delivered(receiver, ["majority", "alone"])
            cancelled = n3.call("DELETE", f"{EVENTS_PATH}/far")
            assert cancelled.status == 200, cancelled
            assert cancelled.json["replicas"]["held_by"] == ["n3"]

        until_in_step(fleet, *NODES)
        for machine in fleet.nodes.values():
            until(lambda: machine.event("far")["status"] == "cancelled", "the cancel wins")  # noqa: B023 -- called at once
            assert machine.call("GET", f"{EVENTS_PATH}/refused").status == 404
            assert sorted(machine.event("after")["replicas"]["held_by"]) == list(NODES)
            assert machine.count("shop", "scheduled") == 1

        # Agreed again: one delivery for each event, from any node.
        later = [f"later-{number}" for number in range(COUNT)]
        for number, event_id in enumerate(later):
            assert schedule(fleet.nodes[NODES[number % 3]], receiver, event_id, "all").status == 201
        until_delivered(receiver, later)
        schedule(n1, receiver, "last", "all", "4s")  # Due after every second delivery would have begun.
        until_delivered(receiver, ["last"])
        received = Counter(each.id for each in receiver.received)
        assert {event_id: received[event_id] for event_id in later} == dict.fromkeys(later, 1)
        assert all(each.occurrence == 1 for each in receiver.received)
        assert sum(held_view(machine)["duplicates"] for machine in fleet.nodes.values()) > 0


def held_view(machine: Machine) -> dict[str, Any]:
    return dict(machine.call("GET", "/v1/cluster").json["replicas"])


def until_delivered_by(receiver: Receiver, ids: list[str], sides: dict[str, list[str]]) -> None:
    """Wait until nodes of every side have delivered all these events."""

    def missing() -> dict[str, int]:
        received = list(receiver.received)
        return {
            name: len(set(ids) - {each.id for each in received if each.sender in senders})
            for name, senders in sides.items()
        }

    until(lambda: not any(missing().values()), lambda: f"missing by side: {missing()}")
