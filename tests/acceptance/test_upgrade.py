"""The previous version and this one: this version opens the data of the previous one, and both run in one cluster.

`tests/previous_version.txt` names the previous version; docs/internals/compatibility.md describes the shared formats.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest

from tests.acceptance import upgrade_stage as stage
from tests.acceptance.fleet import Fleet, epochs_go_back
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import Machine, until
from tests.acceptance.processes import quiet_environment
from tests.acceptance.receiver import Received, Receiver
from tests.acceptance.test_gateways import gateways_of
from tests.acceptance.upgrade_stage import Written, differences, done, path_of, picture
from tests.previous import NAMED_IN, NEW, ROOT, HistoryMissing, Version, previous, taken_out
from tests.services import shared

QUICK = "--lease", "2s"
CALM = "--lease", "10s"
"""A node that stops cleanly releases its lease at once, and a busy machine must not make a node lose its lease."""
# A take-over waits for the longest timeout of a request before it retries deliveries of the dead node.
PATIENT = "[defaults]\ntimeout = '3s'\n"

BETWEEN = 150
"""The number of events between two steps of the upgrade."""
SHAPE = Shape(1_000_000, clients=4, batched=0.1, batch=10, lead_ms=2_000, cancelled=0.3, think_s=0.03)
NAMES = "n1", "n2", "n3"
LASTING_S = 10.0
"""A hand-over takes moments; a request that has to be repeated for longer than this was refused permanently."""


# The previous version is really the previous version


def test_the_previous_version_runs_its_own_code() -> None:
    old = previous()
    where = {version.name: _source_of(version) for version in (old, NEW)}
    commit = NAMED_IN.read_text().strip()
    assert where["previous"].is_relative_to(ROOT / ".build/previous" / commit / "src")
    assert where["new"].is_relative_to(ROOT / "src")


def _source_of(version: Version) -> Path:
    command = [version.command[0], "-c", "import everbell, everbell.errors; print(everbell.errors.__file__)"]
    environment = quiet_environment() | version.environment
    return Path(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip())


def test_processes_of_the_previous_version_start_gateways_of_the_previous_version(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "--gateways", "1")
    machine.version = previous()
    with machine:
        (gateway,) = gateways_of(machine)
        environment = Path(f"/proc/{gateway}/environ").read_bytes().decode().split("\0")
        assert f"PYTHONPATH={machine.version.environment['PYTHONPATH']}" in environment


def test_a_commit_that_is_missing_in_the_history_is_reported(tmp_path: Path) -> None:
    with pytest.raises(HistoryMissing, match="full clone"):
        taken_out("0" * 40, tmp_path)
    assert list(tmp_path.iterdir()) == []


# This version opens the data of the previous one


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "everbell.toml"
    path.write_text(PATIENT)
    return str(path)


@pytest.fixture(params=["rocksdb", "gateways", "postgresql", "cassandra"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, config: str) -> Iterator[Machine]:
    """A machine of the previous version, on an unused store."""
    options: tuple[str, ...] = ()
    match request.param:
        case "gateways":
            options = ("--gateways", "1")
        case "postgresql":
            options = ("--store", shared.postgres().fresh_schema(), *QUICK)
        case "cassandra":
            options = ("--store", shared.cassandra().fresh_keyspace(), *QUICK)
    # The data has access keys, and with them loopback is a target only where that is said.
    options += ("--allow-targets", "127.0.0.0/8")
    machine = Machine(tmp_path / "node", *options, "--node", "n1", "--config", config)
    machine.version = previous()
    with machine:
        yield machine


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_the_data_of_the_previous_version_opens(machine: Machine, receiver: Receiver, end: str) -> None:
    written = stage.write(machine, receiver)
    before = picture(machine)
    assert len(before["dead of past"]) == 2, "the store has nothing to compare"
    if end == "killed":
        machine.schedule(receiver.url("/gate/rush"), tenant="rush", id="rush", key="rush")
        until(lambda: receiver.of("rush"), "under way")
        machine.kill()
        receiver.open_gate("rush")
    else:
        assert machine.stop() == 0
    machine.version = NEW
    machine.start()
    assert list(differences(before, picture(machine))) == []
    _use(machine, receiver, written)
    if end == "killed":
        machine.until_status("rush", "delivered", "rush")
        assert len(receiver.of("rush")) <= 2
    _consistent(machine)
    # Downgrade again.
    after = picture(machine)
    assert machine.stop() == 0
    machine.version = previous()
    machine.start()
    assert list(differences(picture(machine), after)) == []
    machine.until_status(machine.schedule(receiver.url("/ok/back"), tenant="shop"), "delivered")
    assert machine.stop() == 0
    assert "Traceback" not in machine.log, machine.log


def _use(machine: Machine, receiver: Receiver, written: Written) -> None:
    """Use the new version on the old data as users would."""
    _use_keys(machine, written)
    _use_past(machine, receiver, written)
    shop = "/v1/tenants/shop"
    for event in written.requests.values():
        again = machine.call("POST", f"{shop}/events", event)
        assert again.status == 200, ("a repeated request must create no event", event, again)
    taken = machine.call("POST", f"{shop}/events", written.requests["own/1"] | {"payload": "another"})
    assert taken.status == 409, taken
    assert receiver.on("/ok/plain") == []
    done(machine, "DELETE", f"{shop}/pauses?what=tenant")
    _arrive(machine, receiver, written)
    done(machine, "POST", path_of("far/ring", "shop") + "/deliver")
    done(machine, "DELETE", f"{shop}/events?tag=cancel")
    moved = done(machine, "PATCH", path_of("far/move", "shop"), {"in": 0}, **{"if-match": '"1"'})
    assert moved["version"] == 2
    for event_id, status in (("far/ring", "delivered"), ("far/cancel", "cancelled"), ("far/move", "delivered")):
        machine.until_status(quote(event_id, safe=""), status)
    done(machine, "DELETE", "/v1/tenants/bank/pauses?what=queue&name=work")
    _work(machine, "bank", "work", 3)


def _use_keys(machine: Machine, written: Written) -> None:
    for key, method, status in (
        (written.reader, "GET", 200),
        (written.reader, "DELETE", 403),
        (written.revoked, "GET", 401),
    ):
        answer = machine.call(method, path_of("own/1", "shop"), headers={"authorization": f"Bearer {key}"})
        assert answer.status == status, (method, answer)


def _use_past(machine: Machine, receiver: Receiver, written: Written) -> None:
    past = "/v1/tenants/past"
    again = machine.call("POST", f"{past}/events", written.delivered | {"tags": ["old"]})
    assert again.status == 200, ("the delivered event is not known", again)
    assert machine.call("POST", f"{past}/events", written.delivered).status == 409
    assert machine.call("PATCH", path_of("done/own"), {"in": 0}).status == 409
    receiver.open_gate("dead")
    assert done(machine, "POST", f"{past}/dead/redrive", {"all": True, "tag": "old"})["redriven"] == 1
    assert done(machine, "POST", f"{past}/dead/redrive", {"ids": ["dead/own"]})["redriven"] == 1
    until(lambda: not stage.found(machine, "past", "status=dead"), "the dead events are delivered")
    receiver.open_gate("stuck")
    done(machine, "POST", path_of(stage.STUCK[0]) + "/deliver")
    for event_id in stage.STUCK:
        machine.until_status(quote(event_id, safe=""), "delivered", "past")
    assert _payloads(receiver.on("/ok/stuck")) == ["1", "2", "3"]
    done(machine, "PATCH", path_of("resting"), {"paused": False})
    done(machine, "PATCH", path_of("resting"), {"in": 0})
    until(lambda: receiver.on("/ok/resumed"), "the paused event is delivered")
    done(machine, "POST", path_of("again") + "/deliver")
    until(lambda: machine.event("again", "past")["attempt_count"] == 2, "one more attempt")


def _arrive(machine: Machine, receiver: Receiver, written: Written) -> None:
    """All events that the pause held back arrive, once, and in the order of their keys."""
    expected = {f"/ok/keyed/{key}": stage.KEYED for key in stage.KEYS} | {
        "/ok/plain": stage.PLAIN,
        "/ok/own": 2,
        "/ok/thrice": 3,
    }
    for path, number in expected.items():
        receiver.until_ended(number, path)
    for event_id in (*written.plain, "own/1", "own/bytes", "thrice", *(f"{key}/0" for key in stage.KEYS)):
        machine.until_status(quote(event_id, safe=""), "delivered")
    for path, number in expected.items():
        times = Counter((each.id, each.occurrence) for each in receiver.on(path))
        assert list(times.values()) == [1] * number, (path, times)
    assert {each.id for each in receiver.on("/ok/plain")} == written.plain
    assert {each.body for each in receiver.on("/ok/own")} == {json.dumps({"ä": "€"}).encode(), bytes(range(256))}
    backwards = [str(number) for number in reversed(range(stage.KEYED))]
    for key in stage.KEYS:
        assert _payloads(receiver.on(f"/ok/keyed/{key}")) == backwards, key


def _payloads(received: list[Received]) -> list[str]:
    return [each.body.decode() for each in sorted(received, key=lambda each: each.order)]


def _work(machine: Machine, tenant: str, queue: str, number: int) -> None:
    """Lease events of one key from a queue, one after the other."""
    path = f"/v1/tenants/{tenant}/queues/{queue}"
    for expected in range(number):
        (event,) = done(machine, "POST", f"{path}/lease", {"limit": 5, "wait": "10s"})["events"]
        assert event["payload"] == expected
        assert done(machine, "POST", f"{path}/ack", {"leases": [event["lease"]]})["lost"] == []


def _consistent(machine: Machine) -> None:
    """The counts equal the numbers of stored events."""
    for tenant in done(machine, "GET", "/v1/tenants")["tenants"]:
        pending = stage.found(machine, tenant["name"], "")
        dead = stage.found(machine, tenant["name"], "status=dead")
        assert (tenant["pending"], tenant["dead"]) == (len(pending), len(dead)), tenant


# Both run in one cluster


def test_a_cluster_is_upgraded_and_downgraded_node_by_node_under_load(
    tmp_path: Path, receiver: Receiver, config: str
) -> None:
    store = shared.postgres().fresh_schema()
    with Fleet(tmp_path, store, *CALM, "--config", config) as fleet, Receiver() as walked:
        fleet.version = previous()
        for name in NAMES:
            # A gateway always has the version of its engine.
            fleet.nodes[name] = fleet.machine(name, *(("--gateways", "1") if name == "n2" else ()))
            fleet.nodes[name].begin()
        for machine in fleet.nodes.values():
            machine.await_ready()
        fleet.until_balanced(*NAMES)
        load = Load(fleet, receiver, SHAPE, 8)  # type: ignore[arg-type]  # A load uses a fleet as a machine.
        load.start()
        # There and back again.
        steps = [(name, version) for version in (NEW, previous()) for name in NAMES]
        for number, (name, version) in enumerate(steps, 1):
            load.until_acknowledged(load.acknowledged + BETWEEN)
            _replace(fleet, name, version)
            _walk_all(fleet, walked, f"step{number}")
        _judge(load, fleet, receiver)
        # Each version reads the snapshots and entries of the other, and all nodes compute the same value.
        views = [fleet.view(name) for name in NAMES]
        assert len({view["cluster"] for view in views}) == 1
        kinds = {transition["kind"] for view in views for transition in view["transitions"]}
        assert "remove" not in kinds, "a node that stopped cleanly was removed as dead"


def _replace(fleet: Fleet, name: str, version: Version) -> None:
    machine = fleet.nodes.pop(name)
    assert machine.stop() == 0, machine.log
    _quiet(machine)
    machine.version = version
    machine.start()
    fleet.nodes[name] = machine
    fleet.until_balanced(*NAMES)


def _quiet(machine: Machine) -> None:
    # A node of the previous version reports the first question of each newer node that it cannot answer.
    log = re.sub(r"ERROR a call of a gateway failed: explain\n(?:  .*\n)+", "", machine.log)
    assert "Traceback" not in log, log
    assert "another version" not in machine.log, machine.log


def _judge(load: Load, fleet: Fleet, receiver: Receiver) -> None:
    """All events arrive, and the checker finds no violation."""
    load.until_acknowledged(load.acknowledged + BETWEEN)
    load.enough.set()
    load.finish()
    load.drain()
    assert load.violations() == []
    assert epochs_go_back(receiver.received) == []
    assert set(load.answers) <= {200, 201, 207, 409, 503, 504}, load.answers
    assert load.answers[504] <= len(fleet.nodes) * SHAPE.clients, load.answers
    assert load.longest_s < LASTING_S, "refused for too long"
    assert any(asked.cancelled_at is not None for asked in load.checker.asked.values())
    for machine in fleet.nodes.values():
        _quiet(machine)


def _walk_all(fleet: Fleet, receiver: Receiver, step: str) -> None:
    """Send each call from every node to every node of the other version."""
    owners = {part["partition"]: part["owner"] for part in fleet.view()["partitions"]}
    walks = [
        _Walk(fleet.nodes[asker], receiver, f"{step}-{asker}-{owner}", owner, owners)
        for asker in NAMES
        for owner in NAMES
        if fleet.nodes[asker].version != fleet.nodes[owner].version
    ]
    failures: list[BaseException] = []

    def run(walk: _Walk) -> None:
        try:
            walk.run()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(walk,)) for walk in walks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class _Walk:
    """All requests that one node can forward to another: a client of the one asks for events of the other."""

    def __init__(self, machine: Machine, receiver: Receiver, name: str, owner: str, owners: dict[int, str]) -> None:
        self._machine = machine
        self._receiver = receiver
        self._name = name
        self._mine = (
            candidate
            for candidate in (f"{name}-{number}" for number in count())
            if owners[crc32(f"walk\0{candidate}".encode()) % len(owners)] == owner
        )

    def run(self) -> None:
        self._walk_events()
        self._walk_lines()
        self._walk_dead()
        self._walk_queue()
        self._walk_pause()

    def _schedule(self, path: str, **fields: object) -> str:
        to = path if path.startswith("queue:") else self._receiver.url(path)
        return self._machine.schedule(to, 1, "walk", **{"id": next(self._mine), **fields})

    def _ask(self, status: int, method: str, path: str, body: object = None, **headers: str) -> Any:
        answer = self._machine.call(method, path, body, headers)
        assert answer.status == status, (self._name, method, path, answer)
        return answer.json

    def _walk_events(self) -> None:
        name = next(self._mine)
        event: dict[str, object] = {"id": name, "in": "1h", "to": self._receiver.url("/ok/walk"), "payload": {"n": 1}}
        path, events = path_of(name, "walk"), "/v1/tenants/walk/events"
        self._ask(201, "POST", events, event)
        self._ask(200, "POST", events, event)  # The answer for an existing event is the whole event.
        self._ask(409, "POST", events, event | {"payload": 2})
        assert self._ask(200, "GET", path)["status"] == "scheduled"
        fields = {"payload": 3, "tags": ["t"], "headers": {"x-a": "b"}, "retry": {"max_attempts": 2}, "expires": "2h"}
        assert self._ask(200, "PUT", path, event | fields, **{"if-match": '"1"'})["version"] == 2
        self._ask(412, "PUT", path, event, **{"if-match": '"1"'})
        made = next(self._mine)
        self._ask(201, "PUT", path_of(made, "walk"), event | {"id": made})
        before = self._ask(200, "GET", path)
        assert (before["payload"], before["tags"]) == (3, ["t"])
        changed = self._ask(200, "PATCH", path, {"by": "1m", "tags": None, "expires": None, "payload": 4})
        assert (changed["version"], changed["headers"], changed["payload"]) == (3, {"x-a": "b"}, 4)
        assert changed["at"] > before["at"]
        assert "tags" not in changed
        self._ask(412, "PATCH", path, {"payload": 5}, **{"if-match": '"2"'})
        repeating = self._schedule("/ok/walk", repeat={"every": "1h", "count": 9}, **{"in": "1h"})
        paused = self._ask(200, "PATCH", path_of(repeating, "walk"), {"paused": True, "note": "rest"})
        assert paused["paused"]["note"] == "rest", paused
        self._ask(200, "POST", f"{path}/deliver")
        self._machine.until_status(name, "delivered", "walk")
        assert [each.body for each in self._receiver.of(name)] == [b"4"]
        self._ask(409, "PATCH", path, {"payload": 5})
        self._ask(412, "DELETE", path_of(made, "walk"), None, **{"if-match": '"7"'})
        assert self._ask(200, "DELETE", path_of(made, "walk"))["status"] == "cancelled"
        self._ask(404, "DELETE", path_of(next(self._mine), "walk"))

    def _walk_lines(self) -> None:
        key = next(self._mine)
        path = f"/ok/walk/{key}"
        # Generated ids: the key alone determines the owner. The attempts time out until the gate is open.
        retry = {"max_attempts": 99, "backoff": "10ms", "max_backoff": "10ms"}
        first = self._machine.schedule(self._receiver.url(f"/gate/{key}"), tenant="walk", key=key, retry=retry)
        second = self._machine.schedule(self._receiver.url(path), tenant="walk", key=key)
        # Only the owner knows that an attempt is in flight; a node that cannot ask the owner answers the stored status.
        self._machine.until_status(first, "delivering", "walk")
        line = self._ask(200, "GET", f"/v1/tenants/walk/keys/{key}")
        assert (line.get("head", {}).get("id"), line["waiting"]) == (first, 1), line
        self._receiver.open_gate(key)
        self._machine.until_status(second, "delivered", "walk")

    def _walk_dead(self) -> None:
        gate = next(self._mine)
        dead = self._schedule(f"/sick/{gate}", retry={"max_attempts": 1})
        self._machine.until_status(dead, "dead", "walk")
        self._receiver.open_gate(gate)
        assert self._ask(200, "POST", "/v1/tenants/walk/dead/redrive", {"ids": [dead]})["redriven"] == 1
        self._machine.until_status(dead, "delivered", "walk")

    def _walk_queue(self) -> None:
        queue = f"/v1/tenants/walk/queues/{self._name}"
        event = self._schedule(f"queue:{self._name}", retry={"max_attempts": 3, "backoff": "1ms"})

        def lease() -> str:
            (leased,) = self._ask(200, "POST", f"{queue}/lease", {"limit": 3, "wait": "20s"})["events"]
            assert (leased["id"], leased["payload"]) == (event, 1), leased
            return str(leased["lease"])

        nothing_lost = {"done": 1, "lost": []}
        assert self._ask(200, "POST", f"{queue}/extend", {"leases": [token := lease()], "lease": "30s"}) == nothing_lost
        assert self._ask(200, "POST", f"{queue}/release", {"leases": [token]}) == nothing_lost
        failed = {"leases": [{"lease": lease(), "reason": "not today"}]}
        assert self._ask(200, "POST", f"{queue}/fail", failed) == nothing_lost
        assert self._ask(200, "POST", f"{queue}/ack", {"leases": [lease()]}) == nothing_lost
        ended = self._machine.until_status(event, "delivered", "walk")
        assert [each.get("reason") for each in ended["attempts"]] == ["not today", None], ended

    def _walk_pause(self) -> None:
        """The answer to a pause says whether all nodes know of it."""
        pauses = "/v1/tenants/walk/pauses"
        made = self._ask(201, "POST", pauses, {"what": "key", "name": self._name})
        assert "unheard" not in made, made
        self._ask(200, "DELETE", f"{pauses}?what=key&name={self._name}")
