"""Three to five nodes on a real PostgreSQL, with the log there or in a real ZooKeeper: nodes die, stop, join and leave
under load. All acknowledged events arrive, in order per key, under epochs that never go back.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import off_clock
from tests.acceptance.fleet import Fleet, epochs_go_back
from tests.acceptance.load import Load, Shape, instant
from tests.acceptance.machine import Machine, now_ms, until
from tests.acceptance.receiver import Received, Receiver
from tests.services import shared
from tests.services.postgres import PostgresServer
from tests.services.zookeeper import ZookeeperServer

EVENTS = 900
SHAPE = Shape(EVENTS, clients=4, lead_ms=2_000)
QUICK = "--lease", "1s"
# A take-over waits for the longest timeout of a request before it retries deliveries of the dead node. The timeout is
# longer than a busy machine holds a process up while other nodes start: such an attempt would be repeated.
PATIENT = "[defaults]\ntimeout = '3s'\n"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "everbell.toml"
    path.write_text(PATIENT)
    return str(path)


@pytest.fixture(params=["postgresql", "zookeeper"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path, config: str) -> Iterator[Fleet]:
    store = shared.postgres().fresh_schema()
    log = shared.zookeeper().fresh_path() if request.param == "zookeeper" else ""
    with Fleet(tmp_path, store, *QUICK, "--config", config, log=log) as fleet:
        yield fleet


def judge(load: Load, fleet: Fleet, receiver: Receiver) -> None:
    """All events arrive, and the checker finds no violation."""
    load.finish()
    load.drain()
    assert load.violations() == []
    assert epochs_go_back(receiver.received) == []
    for machine in fleet.nodes.values():
        assert "Traceback" not in machine.log, machine.log


def test_other_nodes_take_over_from_killed_nodes(fleet: Fleet) -> None:
    with Receiver(1) as receiver:
        fleet.grow("n1", "n2", "n3")
        load = Load(fleet, receiver, SHAPE, 1)  # type: ignore[arg-type]  # A load uses a fleet as a machine.
        load.start()
        load.until_acknowledged(EVENTS // 6)
        fleet.kill("n2")
        load.until_acknowledged(EVENTS // 3)
        fleet.nodes["n2"].start()
        fleet.until_balanced("n1", "n2", "n3")
        load.until_acknowledged(EVENTS // 2)
        fleet.kill("n1")
        judge(load, fleet, receiver)
        fleet.nodes.pop("n1")
        fleet.until_balanced("n2", "n3")


def test_a_node_frozen_past_its_lease_breaks_no_promise(fleet: Fleet) -> None:
    with Receiver(2) as receiver:
        fleet.grow("n1", "n2", "n3")
        load = Load(fleet, receiver, SHAPE, 2)  # type: ignore[arg-type]
        load.start()
        load.until_acknowledged(EVENTS // 4)
        fleet.disturbances += 1
        fleet.nodes["n2"].signal(signal.SIGSTOP)
        try:
            fleet.until(lambda view: len(view["members"]) == 2, "the frozen node is removed", "n1")
        finally:
            fleet.nodes["n2"].signal(signal.SIGCONT)
        fleet.until_balanced("n1", "n2", "n3")
        judge(load, fleet, receiver)


def test_clocks_that_are_15_s_apart_break_neither_order_nor_takeover(tmp_path: Path, config: str) -> None:
    store = shared.postgres().fresh_schema()
    with Receiver(11) as receiver, Fleet(tmp_path, store, *QUICK, "--config", config) as fleet:
        for name, off_s in (("n1", -7), ("n2", 0), ("n3", 8)):
            fleet.nodes[name] = fleet.machine(name)
            fleet.nodes[name].start(sys.executable, off_clock.__file__, str(off_s))
        fleet.until_balanced("n1", "n2", "n3")
        # All events are accepted before they are due by the clock that is ahead, so their order is defined.
        first_at = now_ms() + 15_000
        keys = [f"k{number}" for number in range(40)]
        events: list[dict[str, object]] = [
            {"to": receiver.url("/ok"), "key": key, "id": f"{key}-{turn}", "at": instant(first_at + 200 * turn)}
            for turn in range(10)
            for key in keys
        ]
        fleet.nodes["n2"].schedule_many(events)
        until(lambda: receiver.received, "the node whose clock is ahead delivers")
        fleet.kill("n3")
        fleet.nodes.pop("n3")
        until(lambda: len(receiver.received) > len(events) // 2, "half is delivered")
        fleet.kill("n1")
        fleet.nodes.pop("n1")
        until(lambda: len({received.id for received in receiver.received}) == len(events), "all are delivered")
        for key in keys:
            came = [each.id for each in receiver.received if each.id.startswith(f"{key}-")]
            assert list(dict.fromkeys(came)) == [f"{key}-{turn}" for turn in range(10)]
        assert epochs_go_back(receiver.received) == []


def test_a_rolling_restart_repeats_no_delivery_and_removes_no_node(fleet: Fleet) -> None:
    with Receiver(3) as receiver:
        fleet.grow("n1", "n2", "n3")
        load = Load(fleet, receiver, SHAPE, 3)  # type: ignore[arg-type]
        load.start()
        for number, name in enumerate(("n1", "n2", "n3"), 1):
            load.until_acknowledged(EVENTS * number // 6)
            machine = fleet.nodes.pop(name)
            assert machine.stop() == 0
            fleet.nodes[name] = machine
            machine.start()
            fleet.until_balanced("n1", "n2", "n3")
        judge(load, fleet, receiver)
        kinds = {transition["kind"] for transition in fleet.view()["transitions"]}
        assert "remove" not in kinds, "a node that stopped cleanly was removed as dead"


def test_a_drained_node_stays_drained_until_its_process_ends(fleet: Fleet) -> None:
    fleet.grow("n1", "n2")
    fleet.until_balanced("n1", "n2")
    assert fleet.nodes["n1"].call("POST", "/v1/cluster/drain", {"node": "n2"}).status == 200
    fleet.until(lambda view: _shares(view) == {"n1": 256, "n2": 0}, "drained")
    before = _incarnation(fleet, "n2")
    fleet.nodes["n2"].signal(signal.SIGSTOP)
    try:
        fleet.until(lambda view: set(_shares(view)) == {"n1"}, "the frozen node is removed", "n1")
    finally:
        fleet.nodes["n2"].signal(signal.SIGCONT)
    fleet.until(lambda view: _shares(view) == {"n1": 256, "n2": 0}, "back, and still drained")
    assert _incarnation(fleet, "n2") != before
    assert fleet.nodes["n2"].stop() == 0
    fleet.nodes["n2"].start()
    fleet.until_balanced("n1", "n2")


def test_keys_whose_receivers_fence_do_not_wait_for_requests_of_a_dead_node(fleet: Fleet) -> None:
    """The attempt of the dead node hangs, and its deadline is longer than the test waits."""
    with Receiver(10) as receiver:
        fleet.grow("n1", "n2")
        fleet.until_balanced("n1", "n2")
        for tenant, policy in (("fences", {"fencing": "receiver"}), ("waits", {})):
            answer = fleet.nodes["n1"].call("PUT", f"/v1/tenants/{tenant}", {"timeout": "1h", **policy})
            assert answer.status == 200, answer
        until(lambda: all(_running(machine) for machine in fleet.nodes.values()), "all nodes run partitions")
        ids = {
            tenant: [
                fleet.nodes["n1"].schedule(receiver.url("/gate/never"), tenant=tenant, key=f"k{number}", **{"in": 0})
                for number in range(20)
            ]
            for tenant in ("fences", "waits")
        }
        until(lambda: len(receiver.received) >= 40, lambda: f"{len(receiver.received)} of 40 are being delivered")
        fleet.kill("n2")
        fleet.nodes.pop("n2")
        first = max(received.epoch for received in receiver.received)
        repeated = until(lambda: _repeated(receiver, ids["fences"]), "the events of the dead node are sent again")
        assert all(each.epoch > first for each in repeated)
        assert _repeated(receiver, ids["waits"]) == []
        fleet.kill("n1")  # It would go on to connect to the receiver while that closes.


def _repeated(receiver: Receiver, ids: list[str]) -> list[Received]:
    """The second deliveries of these events."""
    return [each for event_id in ids for each in receiver.of(event_id)[1:]]


def test_a_dead_node_is_forgotten_when_its_last_event_has_ended(fleet: Fleet) -> None:
    with Receiver(9) as receiver:
        fleet.grow("n1", "n2", "n3")
        fleet.until_balanced("n1", "n2", "n3")
        until(lambda: _running(fleet.nodes["n2"]) > 0, "n2 runs its partitions")
        left = fleet.nodes["n2"].schedule(receiver.url("/ok"), **{"in": "1h"})
        fleet.kill("n2")
        fleet.nodes.pop("n2")
        fleet.until(lambda view: {each["dead"] for each in view["stand_ins"]} == {"n2"}, "others stand in for n2")
        assert fleet.nodes["n1"].call("POST", f"/v1/tenants/shop/events/{left}/deliver").status == 200
        view = fleet.until(lambda view: not view["stand_ins"], "n2 is forgotten")
        assert [each["what"] for each in view["transitions"] if each["kind"] == "forget"] == ["n2"]
        assert "the last of its events has ended" in fleet.nodes["n1"].log + fleet.nodes["n3"].log


def _shares(view: dict[str, Any]) -> dict[str, int]:
    return {member["name"]: member.get("partitions", 0) for member in view["members"] if member["state"] != "joining"}


def _incarnation(fleet: Fleet, name: str) -> str:
    return next(str(member["incarnation"]) for member in fleet.view("n1")["members"] if member["name"] == name)


def test_a_cluster_grows_from_one_to_five_and_shrinks_again(fleet: Fleet) -> None:
    with Receiver(4) as receiver:
        fleet.add("n1")
        load = Load(fleet, receiver, Shape(2 * EVENTS, clients=4, lead_ms=2_000), 4)  # type: ignore[arg-type]
        load.start()
        fleet.grow("n2", "n3", "n4", "n5")
        fleet.until_balanced("n1", "n2", "n3", "n4", "n5")
        load.until_acknowledged(EVENTS)
        for name in ("n5", "n1", "n3", "n4"):
            fleet.shrink(name)
        fleet.until_balanced("n2")
        judge(load, fleet, receiver)


def test_a_restart_of_the_database_loses_no_event(tmp_path: Path, config: str) -> None:
    with ExitStack() as running:
        server = running.enter_context(shared.had(PostgresServer))
        receiver = running.enter_context(Receiver(5))
        fleet = running.enter_context(Fleet(tmp_path, server.fresh_schema(), *QUICK, "--config", config))
        fleet.grow("n1", "n2", "n3")
        load = Load(fleet, receiver, SHAPE, 5)  # type: ignore[arg-type]
        load.start()
        load.until_acknowledged(EVENTS // 4)
        server.restart()
        fleet.disturbances += 3
        load.until_acknowledged(EVENTS // 2)
        server.kill()
        server.start()
        fleet.disturbances += 3
        judge(load, fleet, receiver)
        fleet.until_balanced("n1", "n2", "n3")


def test_a_restart_of_the_log_server_loses_no_event(tmp_path: Path, config: str) -> None:
    with ExitStack() as running:
        server = running.enter_context(shared.had(ZookeeperServer))
        receiver = running.enter_context(Receiver(7))
        store = shared.postgres().fresh_schema()
        fleet = running.enter_context(Fleet(tmp_path, store, *QUICK, "--config", config, log=server.fresh_path()))
        fleet.grow("n1", "n2", "n3")
        load = Load(fleet, receiver, SHAPE, 7)  # type: ignore[arg-type]
        load.start()
        load.until_acknowledged(EVENTS // 4)
        server.restart()
        fleet.disturbances += 3
        load.until_acknowledged(EVENTS // 2)
        server.kill()
        server.start()
        fleet.disturbances += 3
        judge(load, fleet, receiver)
        fleet.until_balanced("n1", "n2", "n3")


def test_every_node_answers_every_request(fleet: Fleet) -> None:
    with Receiver(6) as receiver:
        fleet.grow("n1", "n2")
        gateway = fleet.add("edge", "--gateway-only")
        member = next(each for each in fleet.view()["members"] if each["name"] == "edge")
        assert (member["gateway"], member.get("partitions", 0)) == (True, 0)
        for number, machine in enumerate([fleet.nodes["n1"], fleet.nodes["n2"], gateway]):
            _walk(machine, list(fleet.nodes.values()), receiver, f"event-{number}")


def _walk(machine: Machine, others: list[Machine], receiver: Receiver, name: str) -> None:
    """Schedule, look up, change, cancel, deliver: each at another node than the step before."""
    made = machine.schedule(receiver.url("/ok"), 1, **{"in": "1h"})
    own = machine.schedule(receiver.url("/ok"), 2, id=name, key=f"key of {name}", **{"in": "1h"})
    for other in others:
        assert other.event(own)["status"] == "scheduled"
        changed = other.call("PATCH", f"/v1/tenants/shop/events/{own}", {"tags": [other.url[-5:]]})
        assert changed.status == 200, changed
    assert machine.event(own)["version"] == 1 + len(others)
    cancelled = others[0].call("DELETE", f"/v1/tenants/shop/events/{made}")
    assert cancelled.status == 200, cancelled
    assert others[-1].event(made)["status"] == "cancelled"
    rung = others[-1].call("POST", f"/v1/tenants/shop/events/{own}/deliver")
    assert rung.status == 200, rung
    until(lambda: receiver.of(own), "rung")
    for other in others:
        other.until_status(own, "delivered")


def test_a_tenant_can_spread_its_events_over_all_nodes(fleet: Fleet) -> None:
    """One node accepts everything; each node delivers within a tenth of its share."""
    with Receiver(8) as receiver:
        fleet.grow("n1", "n2", "n3")
        fleet.until_balanced("n1", "n2", "n3")
        busy = fleet.nodes["n1"]
        # The log names the owners; a little later, the owners run their partitions.
        until(lambda: sum(map(_running, fleet.nodes.values())) == 256, "all partitions run")
        assert busy.call("PUT", "/v1/tenants/shop", {"placement": "spread"}).status == 200
        for _ in range(10):
            busy.schedule_many([{"to": receiver.url("/ok"), "in": 0} for _ in range(90)])
        until(lambda: len(receiver.received) >= EVENTS, lambda: f"{len(receiver.received)} of {EVENTS} delivered")
        delivered = until(
            lambda: _counted([node.metric("delivered_total") for node in fleet.nodes.values()]), "all counted"
        )
        assert all(abs(count - EVENTS / 3) <= EVENTS / 30 for count in delivered), delivered


def _running(machine: Machine) -> int:
    return int(machine.call("GET", "/healthz").json["cluster"]["partitions"])


def _counted(delivered: list[int]) -> list[int]:
    """The counts, if they add up to all events."""
    return delivered if sum(delivered) == EVENTS else []


def test_a_worker_gets_the_due_events_of_all_nodes_from_any_node(fleet: Fleet) -> None:
    fleet.grow("n1", "n2", "n3")
    fleet.until_balanced("n1", "n2", "n3")
    asked = {fleet.nodes["n1"].schedule("queue:work", number, key=f"k{number}") for number in range(40)}
    leased: dict[str, str] = {}

    def lease_more() -> bool:
        answer = fleet.nodes["n2"].call("POST", "/v1/tenants/shop/queues/work/lease", {"limit": 10, "wait": "1s"})
        assert answer.status == 200, answer
        leased.update((event["id"], event["lease"]) for event in answer.json["events"])
        return len(leased) == len(asked)

    until(lease_more, lambda: f"all leased, {len(leased)} so far")
    assert set(leased) == asked
    done = fleet.nodes["n3"].call("POST", "/v1/tenants/shop/queues/work/ack", {"leases": list(leased.values())})
    assert done.json["lost"] == []
    for event_id in asked:
        assert fleet.nodes["n1"].event(event_id)["status"] == "delivered"
