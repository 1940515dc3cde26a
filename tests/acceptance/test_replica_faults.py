"""Clusters that hold events in memory, under load: nodes that are killed, restarted, added and removed, and a log that
is away. A checker that knows only requests and deliveries judges them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import until
from tests.acceptance.receiver import Receiver
from tests.acceptance.replica_stage import judge, policy, shape, until_in_step, until_members
from tests.services import shared
from tests.services.zookeeper import ZookeeperServer

EVENTS = 450
NODES = "n1", "n2", "n3", "n4"
# Some load is left until the last fault; the test ends it.
LONG = shape(6_000, think_s=0.02)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(1) as receiver:
        yield receiver


def begin(fleet: Fleet, receiver: Receiver, of: Shape, seed: int = 1) -> Load:
    load = Load(fleet, receiver, of, seed)  # type: ignore[arg-type]  # A load uses a fleet as a machine.
    load.start()
    return load


def test_no_event_is_lost_when_one_and_then_two_of_its_three_holders_are_killed(
    tmp_path: Path, receiver: Receiver
) -> None:
    options = ("--lease", "1s", "--config", policy(tmp_path, "all"))
    with Fleet(tmp_path, "replicas:", *options, log=shared.postgres().fresh_schema()) as fleet:
        fleet.grow(*NODES)
        until_in_step(fleet, *NODES)
        load = begin(fleet, receiver, LONG)
        load.until_acknowledged(EVENTS // 3)
        fleet.kill("n1")
        load.until_acknowledged(EVENTS * 2 // 3)
        fleet.nodes["n1"].start()
        until_in_step(fleet, *NODES)
        load.until_acknowledged(EVENTS)
        fleet.kill("n2")
        fleet.kill("n3")
        load.until_acknowledged(load.acknowledged + EVENTS // 3)
        load.enough.set()
        judge(load, fleet)


def test_events_are_taken_and_delivered_while_zookeeper_is_stopped(tmp_path: Path, receiver: Receiver) -> None:
    options = ("--lease", "1s", "--config", policy(tmp_path), "--gateways", "1")
    with shared.had(ZookeeperServer) as log, Fleet(tmp_path, "replicas:", *options, log=log.fresh_path()) as fleet:
        fleet.grow("n1", "n2", "n3")
        until_in_step(fleet, "n1", "n2", "n3")
        load = begin(fleet, receiver, LONG)
        load.until_acknowledged(EVENTS // 3)
        log.stop()
        for machine in fleet.nodes.values():
            until(lambda: "lost its lease" in machine.log, "the lease is lost")  # noqa: B023 -- called at once
        load.until_acknowledged(load.acknowledged + EVENTS)
        for machine in fleet.nodes.values():
            ready = machine.call("GET", "/readyz")
            assert ready.status == 200, "without a store, a node is of use without its log"
        log.start()
        until_members(fleet, "n1", "n2", "n3")
        load.until_acknowledged(load.acknowledged + EVENTS // 3)
        load.enough.set()
        judge(load, fleet)


def test_a_cluster_grows_from_one_to_five_shrinks_to_two_and_restarts_under_load(
    tmp_path: Path, receiver: Receiver
) -> None:
    options = ("--lease", "1s", "--config", policy(tmp_path))
    with Fleet(tmp_path, "replicas:", *options, log=shared.postgres().fresh_schema()) as fleet:
        fleet.add("n1")
        load = begin(fleet, receiver, LONG)
        load.until_acknowledged(EVENTS // 3)
        fleet.grow("n2", "n3", "n4", "n5")
        until_in_step(fleet, "n1", "n2", "n3", "n4", "n5")
        load.until_acknowledged(load.acknowledged + EVENTS // 3)
        for name in ("n1", "n4", "n5"):
            fleet.shrink(name)
        until_in_step(fleet, "n2", "n3")
        load.until_acknowledged(load.acknowledged + EVENTS // 3)
        for name in ("n2", "n3"):
            assert fleet.nodes[name].stop() == 0
            load.until_acknowledged(load.acknowledged + EVENTS // 9)
            fleet.nodes[name].start()
            until_in_step(fleet, "n2", "n3")
        load.enough.set()
        judge(load, fleet)


def test_stored_events_and_events_of_replicas_are_delivered_side_by_side(tmp_path: Path, receiver: Receiver) -> None:
    config = tmp_path / "both.toml"
    timers = 'durability = "replicas", replicas = {count = 3, skew = "1s"}'
    config.write_text(f'[defaults]\ntimeout = "1s"\n[tenants]\ntimers = {{{timers}}}\n')
    options = ("--lease", "1s", "--config", str(config), "--replica-memory", "64MiB")
    with Fleet(tmp_path, shared.postgres().fresh_schema(), *options) as fleet:
        fleet.grow("n1", "n2", "n3")
        until_in_step(fleet, "n1", "n2", "n3")
        held = Shape(EVENTS, 2, keyed=0.0, own_ids=1.0, lead_ms=2_000, paths=("/ok",), tenant="timers")
        timed = begin(fleet, receiver, held, 2)
        stored_receiver = Receiver(3)
        with stored_receiver:
            stored = begin(fleet, stored_receiver, Shape(EVENTS, 2, lead_ms=2_000, paths=("/ok",)), 3)
            timed.until_acknowledged(EVENTS // 3)
            stored.until_acknowledged(EVENTS // 3)
            fleet.kill("n3")
            judge(timed, fleet)
            stored.finish()
            stored.drain()
            assert stored.violations() == []
