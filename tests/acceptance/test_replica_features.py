"""The features of stored events, for events that three nodes hold in memory: over HTTP, Kafka, gateways and the command
line, each request to any of the nodes. And input that this mode refuses, with the reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from tests.acceptance.fleet import Fleet
from tests.acceptance.kafka_stage import KafkaStage
from tests.acceptance.machine import Answer, Machine, now_ms, until
from tests.acceptance.processes import CommandLine
from tests.acceptance.receiver import Receiver
from tests.acceptance.replica_stage import until_in_step
from tests.acceptance.test_receivers import SECRET
from tests.services import shared

CONFIG = f"""
[defaults]
timeout = "1s"
retry = {{max_attempts = 3, backoff = "100ms", max_backoff = "100ms"}}

[tenants.bulk]
batch = 100
secrets = ["{SECRET}"]

[tenants.small]
limits = {{pending = 5}}
"""
NODES = "n1", "n2", "n3"


@dataclass
class Scene:
    """A cluster without a database; each request goes to the next node."""

    fleet: Fleet
    receiver: Receiver
    kafka: KafkaStage

    def __post_init__(self) -> None:
        self._nodes = cycle(self.fleet.nodes.values())

    @property
    def node(self) -> Machine:
        return next(self._nodes)

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        return self.node.call(method, f"/v1/tenants/{path}", body, headers)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("features")
    config = folder / "everbell.toml"
    config.write_text(CONFIG)
    kafka = KafkaStage(folder, shared.kafka())
    kafka.be_patient()
    options = ("--lease", "1s", "--config", str(config), *kafka.options)
    with Receiver(1) as receiver, Fleet(folder, "replicas:", *options, log=shared.postgres().fresh_schema()) as fleet:
        fleet.add("n1", "--gateways", "2")
        fleet.grow("n2", "n3")
        until_in_step(fleet, *NODES)
        yield Scene(fleet, receiver, kafka)
        for machine in fleet.nodes.values():
            assert "Traceback" not in machine.log, machine.log


def test_recurrence_retries_dead_events_and_redrive(scene: Scene) -> None:
    url = scene.receiver.url
    repeat = {"every": "200ms", "count": 3}
    recurring = scene.node.schedule(url("/ok/recurring"), 1, repeat=repeat)
    scene.node.until_status(recurring, "delivered")
    assert [each.occurrence for each in scene.receiver.on("/ok/recurring")] == [1, 2, 3]
    retried = scene.node.schedule(url("/fail/2/503"), 1)
    assert len(scene.node.until_status(retried, "delivered")["attempts"]) == 3
    dead = scene.node.schedule(url("/sick/nurse"), 1)
    scene.node.until_status(dead, "dead")
    for machine in scene.fleet.nodes.values():
        assert machine.count("shop", "dead") == 1
    scene.receiver.open_gate("nurse")
    assert scene.call("POST", "shop/dead/redrive", {"all": True}).json["redriven"] == 1
    scene.node.until_status(dead, "delivered")


def test_lines_with_modes_and_many_events_in_one_signed_post(scene: Scene) -> None:
    to = scene.receiver.url("/ok/bulk")
    events = [{"id": f"b{number}", "to": to, "in": "3s", "payload": number} for number in range(250)]
    items: list[dict[str, Any]] = [{"mode": "put", **event} for event in events]
    items += [{"mode": "cancel", "id": "b7"}, {"mode": "put", **events[8], "payload": "new"}, {"id": "b9", "in": "x"}]
    lines = "\n".join(map(json.dumps, items)).encode()
    answer = scene.call("POST", "bulk/events/batch", lines, {"content-type": "application/x-ndjson"})
    assert (answer.status, answer.json["accepted"], answer.json["rejected"]) == (207, 252, 1), answer
    until(lambda: len({each.id for each in scene.receiver.on("/ok/bulk")}) == 249, "all but the cancelled one")
    received = scene.receiver.on("/ok/bulk")
    assert "b7" not in {each.id for each in received}
    assert {each.data for each in received if each.id == "b8"} == {"new"}
    assert max(Counter(each.request for each in received).values()) > 10, "events shared a POST"
    for each in received:
        Webhook(SECRET).verify(each.body, each.headers)
    assert scene.node.event("b7", "bulk")["status"] == "cancelled"


def test_records_come_from_kafka_and_go_to_kafka(scene: Scene) -> None:
    scene.kafka.write(60, lead_ms=500)
    scene.kafka.judge(restarts=len(NODES))
    scene.kafka.until_read()


def test_workers_lease_from_any_node(scene: Scene) -> None:
    ids = [scene.node.schedule("queue:mail", number) for number in range(9)]
    done: list[str] = []

    def work() -> bool:
        leases = scene.call("POST", "shop/queues/mail/lease", {"limit": 2, "wait": "1s"}).json["events"]
        tokens = [lease["lease"] for lease in leases]
        if tokens:
            acknowledged = scene.call("POST", "shop/queues/mail/ack", {"leases": tokens})
            assert acknowledged.json["lost"] == [], acknowledged
        done.extend(lease["id"] for lease in leases)
        return len(done) >= len(ids)

    until(work, lambda: f"{len(done)} of {len(ids)}")
    assert sorted(done) == sorted(ids)
    (queue,) = scene.call("GET", "shop/queues").json["queues"]
    assert (queue["name"], queue["last_minute"]["delivered"]) == ("mail", 9)


def test_search_forecast_export_history_and_reasons(scene: Scene) -> None:
    to = scene.receiver.url("/ok/later")
    ids = [scene.node.schedule(to, n, "far", **{"in": "30m"}, tags=["red"] if n % 2 else []) for n in range(12)]
    for machine in scene.fleet.nodes.values():
        assert machine.count("far", "scheduled") == 12
        assert machine.call("GET", "/v1/tenants/far/count").json["count"] == 12
        due = machine.call("GET", "/v1/tenants/far/forecast?per=hour&count=2").json
        assert sum(span["due"] for span in due["spans"]) == 12, due
    exported = CommandLine(scene.node.url)("export", "--tenant", "far")
    assert exported.code == 0, exported
    assert {json.loads(line)["id"] for line in exported.out.splitlines()} == set(ids)
    seen = scene.node.event(ids[0], "far")
    assert seen["why"]["code"] == "due-later"
    assert seen["replicas"]["next"] == seen["replicas"]["held_by"][0]
    shown = CommandLine(scene.node.url)("show", "--tenant", "far", ids[0])
    assert "is next in line" in shown.out, shown
    standing = scene.call("GET", "far/history").json["now"]
    assert standing["pending"] == 12, standing
    assert scene.call("DELETE", "far/events?tag=red").json["cancelled"] == 6
    status = CommandLine(scene.node.url)("status")
    assert "held (by rank:" in status.out, status
    for machine in scene.fleet.nodes.values():
        metrics = machine.call("GET", "/metrics").body.decode()
        assert 'everbell_replicas_held_events{rank="' in metrics
        assert "everbell_replicas_bytes_max" in metrics


def test_pauses_expiry_and_quotas(scene: Scene) -> None:
    pause = scene.call("POST", "held/pauses", {"what": "tenant", "note": "moving"})
    assert pause.status in (200, 201), pause
    to = scene.receiver.url("/ok/paused")
    waiting = scene.node.schedule(to, 1, "held")
    expiring = scene.node.schedule(to, 2, "held", expires="100ms")
    late_at = now_ms() + 100
    until(lambda: scene.node.event(waiting, "held")["why"]["code"] == "paused", "paused")
    until(lambda: scene.node.event(expiring, "held")["why"]["code"] == "paused", "paused")
    assert scene.receiver.on("/ok/paused") == []
    until(lambda: now_ms() > late_at, "the second one is worth nothing any more")
    assert scene.call("DELETE", "held/pauses?what=tenant").status == 200
    scene.node.until_status(waiting, "delivered", "held")
    scene.node.until_status(expiring, "expired", "held")

    body = [{"to": to, "in": "1h", "payload": n} for n in range(8)]
    answer = scene.call("POST", "small/events/batch", body)
    assert (answer.status, answer.json["accepted"]) == (207, 5), answer
    assert {error["status"] for error in answer.json["errors"]} == {429}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"key": "k"}, "key", "the order of a key needs one owner"),
    ({"replicas": {"count": 8}}, "replicas.count", "1 to 7 replicas"),
    ({"replicas": {"count": 0}}, "replicas.count", "1 to 7 replicas"),
    ({"replicas": {"skew": 0}}, "replicas.skew", "longer than nothing, and one hour at most"),
    ({"replicas": {"skew": "61m"}}, "replicas.skew", "longer than nothing, and one hour at most"),
    ({"replicas": {"ack": "two"}}, "replicas.ack", "one, majority, all"),
    ({"durability": "disk"}, "durability", "store, replicas"),
    ({"durability": "store"}, "durability", "this server keeps no store"),
    ({"durability": "store", "replicas": {"count": 2}}, "replicas", "goes with durability replicas"),
]


@pytest.mark.parametrize(("fields", "field", "reason"), REFUSED, ids=lambda each: str(each)[:40])
def test_bad_input_is_refused_with_the_field_and_the_reason(
    scene: Scene, fields: dict[str, Any], field: str, reason: str
) -> None:
    event = {"to": scene.receiver.url("/ok/never"), "in": "1h", **fields}
    for path, body in (("odd/events", event), ("odd/events/batch", [event, event])):
        answer = scene.call("POST", path, body)
        assert answer.status in (400, 422), answer
        assert reason in answer.body.decode(), answer
        assert field in answer.body.decode(), answer
    put = scene.call("PUT", "odd/events/mine", event)
    assert put.status in (400, 422), put
    assert scene.node.count("odd", "scheduled") == 0


def test_more_replicas_than_nodes_are_held_by_all_nodes_and_reported(scene: Scene) -> None:
    event_id = scene.node.schedule(scene.receiver.url("/ok/wide"), 1, **{"in": "1h"}, replicas={"count": 7})
    replicas = scene.node.event(event_id)["replicas"]
    assert replicas["count"] == 7
    assert sorted(replicas["held_by"]) == list(NODES)


def test_the_store_cannot_be_copied_where_there_is_none(scene: Scene) -> None:
    answer = scene.fleet.nodes["n2"].call("POST", "/v1/backups")
    assert (answer.status, "keeps nothing on disk" in answer.json["detail"]) == (409, True), answer
