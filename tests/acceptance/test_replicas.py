"""Events of replicas on real nodes without a database: killed, restarted, and cut off from their log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver
from tests.services import shared
from tests.services.postgres import PostgresServer

# Deliveries are due after the kills; the skew is short, so that the test is.
LEAD = "3s"
REPLICAS = {"count": 3, "skew": "1s"}
EVENTS = 60


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(1) as receiver:
        yield receiver


def events_for(receiver: Receiver, **fields: Any) -> list[dict[str, object]]:
    to = receiver.url("/ok")
    return [{"to": to, "payload": n, "in": LEAD, "replicas": REPLICAS, **fields} for n in range(EVENTS)]


def delivered(receiver: Receiver, ids: list[str]) -> set[str]:
    wanted = set(ids)
    return {each.id for each in receiver.received if each.id in wanted and each.accepted}


def until_delivered(receiver: Receiver, ids: list[str]) -> None:
    until(lambda: len(delivered(receiver, ids)) == len(ids), lambda: f"{len(delivered(receiver, ids))} of {len(ids)}")


def held(machine: Machine) -> dict[str, Any]:
    return dict(machine.call("GET", "/v1/cluster").json["replicas"])


def members(machine: Machine) -> set[str]:
    return {each["name"] for each in machine.call("GET", "/v1/cluster").json["members"] if each["state"] == "member"}


def test_events_outlive_two_of_three_nodes_and_any_node_answers(tmp_path: Path, receiver: Receiver) -> None:
    with Fleet(tmp_path, "replicas:", "--lease", "1s", log=shared.postgres().fresh_schema()) as fleet:
        fleet.grow("n1", "n2", "n3")
        until(lambda: all(len(members(each)) == 3 for each in fleet.nodes.values()), "three members")
        n1, n3 = fleet.nodes["n1"], fleet.nodes["n3"]
        ids = n1.schedule_many(events_for(receiver))
        far = n1.schedule(receiver.url("/ok"), 1, **{"in": "1h", "id": "far"})
        assert sorted(n3.event(far)["replicas"]["held_by"]) == ["n1", "n2", "n3"]

        changed = fleet.nodes["n2"].call("PATCH", "/v1/tenants/shop/events/far", {"payload": 2})
        assert (changed.status, changed.json["version"]) == (200, 2), changed
        assert n3.event(far)["payload"] == 2

        fleet.kill("n1")
        fleet.kill("n2")
        until_delivered(receiver, ids)
        refused = n3.call("POST", "/v1/tenants/shop/events", {"to": receiver.url("/ok"), "in": "1h"})
        assert refused.status in (201, 503), refused

        # The two return empty; the third refills them, and dies.
        for name in ("n1", "n2"):
            fleet.nodes[name].start()
        for name in ("n1", "n2"):
            until(lambda: held(fleet.nodes[name])["held"] > 0, f"{name} is refilled")  # noqa: B023 -- called at once
        fleet.kill("n3")
        assert fleet.nodes["n1"].event(far)["payload"] == 2
        cancelled = fleet.nodes["n2"].call("DELETE", "/v1/tenants/shop/events/far")
        assert cancelled.status == 200, cancelled
        assert fleet.nodes["n1"].event(far)["status"] == "cancelled"
        for machine in fleet.nodes.values():
            assert "Traceback" not in machine.log, machine.log


def test_events_are_taken_and_delivered_while_the_log_is_away(tmp_path: Path, receiver: Receiver) -> None:
    with (
        shared.had(PostgresServer) as log,
        Fleet(tmp_path, "replicas:", "--lease", "1s", "--gateways", "1", log=log.fresh_schema()) as fleet,
    ):
        fleet.grow("n1", "n2", "n3")
        until(lambda: all(len(members(each)) == 3 for each in fleet.nodes.values()), "three members")
        before = fleet.nodes["n1"].schedule_many(events_for(receiver))
        log.stop()
        until(lambda: "lost its lease" in fleet.nodes["n1"].log, "the node has lost its lease")
        during = fleet.nodes["n2"].schedule_many(events_for(receiver))
        until_delivered(receiver, before + during)
        log.start()
        until(lambda: all(len(members(each)) == 3 for each in fleet.nodes.values()), "three members again")
        for machine in fleet.nodes.values():
            assert "Traceback" not in machine.log, machine.log


def test_a_node_that_stops_hands_its_events_over(tmp_path: Path, receiver: Receiver) -> None:
    with Fleet(tmp_path, "replicas:", "--lease", "1s", log=shared.postgres().fresh_schema()) as fleet:
        fleet.add("n1")
        ids = fleet.nodes["n1"].schedule_many(events_for(receiver, **{"in": "4s"}))
        fleet.grow("n2", "n3")
        fleet.shrink("n1")
        until_delivered(receiver, ids)
        assert sorted({each.id for each in receiver.received}) == sorted(ids)
        for machine in fleet.nodes.values():
            assert "Traceback" not in machine.log, machine.log
