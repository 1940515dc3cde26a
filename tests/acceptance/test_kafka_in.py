"""Scheduling from a real Kafka: each record once, in order, through crashes, rebalancing and unavailable brokers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from everbell.core.time import format_instant
from tests.acceptance.fleet import Fleet
from tests.acceptance.kafka_stage import KafkaStage
from tests.acceptance.machine import Machine, now_ms, until
from tests.acceptance.receiver import Receiver
from tests.acceptance.test_gateways import TWO, gateways_of, until_replaced
from tests.services import shared
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer

ONE = ("--gateways", "1")


@pytest.fixture
def stage(tmp_path: Path) -> KafkaStage:
    return KafkaStage(tmp_path, shared.kafka())


@pytest.fixture
def fragile() -> KafkaServer:
    return shared.fragile_kafka()


def test_each_record_of_a_topic_is_scheduled_once_and_in_order(tmp_path: Path, stage: KafkaStage) -> None:
    stage.be_patient()
    with Machine(tmp_path, *stage.options, *TWO) as machine:
        stage.until_shared(2, 2)
        stage.write(300, keys=7)
        stage.write(300)
        got = stage.judge()
        stage.until_read()
        # Each gateway has the figures that the engine sent it last.
        until(lambda: machine.metric("kafka_records_total") == 600, "records are counted once")
        until(lambda: machine.metric("kafka_events_total") == 600, "events are counted once")
        assert machine.stop() == 0

    assert len(got) == 600


def test_a_record_names_its_tenant_and_is_found_by_its_offset(tmp_path: Path, stage: KafkaStage) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = [("everbell-tenant", b"blue"), ("traceparent", trace.encode())]
    event = {"to": "queue:work", "in": "1h", "payload": {"a": 1}}
    with Machine(tmp_path, *stage.options) as machine:
        stage.topics.write(stage.source, json.dumps(event).encode(), headers=headers, key=b"k", partition=2)
        stage.topics.write(stage.source, json.dumps([event, event]).encode(), partition=2)
        stage.topics.write(stage.source, json.dumps(event).encode(), headers=[("everbell-id", b"own")])
        until(lambda: machine.metric("kafka_events_total") >= 4, "read")
        found = machine.event(f"kafka:{stage.source}:2:0", "blue")
        assert (found["key"], found["payload"], found["status"]) == ("k", {"a": 1}, "scheduled")
        assert found["traceparent"] == trace
        assert machine.event(f"kafka:{stage.source}:2:1:1", "default")["status"] == "scheduled"
        assert machine.event("own", "default")["status"] == "scheduled"


def test_a_killed_gateway_loses_no_record(tmp_path: Path, stage: KafkaStage) -> None:
    # The quota slows reading down, so that the kill comes in the middle of a batch.
    with Machine(tmp_path, *stage.options, *TWO, config="[defaults]\nlimits = { rate = 200 }\n") as machine:
        stage.until_shared(2, 2)
        before = gateways_of(machine)
        stage.write(500, keys=20)
        until(lambda: machine.metric("kafka_events_total") > 0, "some read")
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        stage.write(100, keys=20)
        until_replaced(machine, {victim})
        stage.judge()
        stage.until_read()
        until(lambda: machine.count("default", "delivered") == stage.written, "all finished")
        until(lambda: machine.metric("kafka_records_total") >= stage.written, "all records are read")
        until(lambda: machine.call("GET", "/healthz").json["kafka"] == {"ok": True, "lag_records": 0}, "caught up")


def test_a_stopping_server_leaves_the_group_before_its_attempts_have_ended(tmp_path: Path, stage: KafkaStage) -> None:
    stage.be_patient()
    with Receiver() as receiver, Machine(tmp_path, *stage.options, *TWO, "--drain", "60s") as machine:
        stage.until_shared(2, 2)
        machine.schedule(receiver.url("/gate/slow"))
        until(lambda: receiver.on("/gate/slow"), "under way")
        stage.write(200, keys=20)
        until(lambda: machine.metric("kafka_events_total") == 200, "read")
        machine.signal(signal.SIGTERM)
        stage.until_shared()
        assert not machine.ended
        receiver.open_gate("slow")
        assert machine.code == 0
        stage.until_read()


def test_records_read_again_after_a_kill_make_no_second_event(tmp_path: Path, stage: KafkaStage) -> None:
    machine = Machine(tmp_path, *stage.options, *ONE)
    with machine:
        for _ in range(2):
            stage.write(1_500, keys=100, lead_ms=500)
            until(lambda: machine.metric("kafka_events_total") > 0, "some read")
            machine.kill()
            machine.start()
        got = stage.judge(restarts=machine.starts - 1)
        stage.until_read()
        # Only deliveries in flight at a kill may be repeated; a record that was only read again is not delivered again.
        assert len(got) < stage.written * 1.5
        until(lambda: machine.count("default", "delivered") == stage.written, "all finished")


def test_refused_records_go_to_the_dead_letter_topic_and_block_no_other(tmp_path: Path, stage: KafkaStage) -> None:
    stage.be_patient()
    with Machine(tmp_path, *stage.options, *ONE) as machine:
        stage.write(10)
        stage.topics.write(stage.source, b"{nonsense", key=b"k", headers=[("x-from", b"here")], partition=1)
        stage.topics.write(stage.source, None, b'{"to": "queue:a"}', partition=1)
        stage.topics.write(stage.source, b'{"to": "queue:a", "in": 0}', headers=[("everbell-tenant", b"-")])
        array = [{"to": "queue:a", "in": 0}, {"to": "queue:a", "in": 0, "payload": "x" * 300_000}]
        stage.topics.write(stage.source, json.dumps(array).encode())
        stage.topics.write(stage.source, b'{"to": "queue:a", "in": 0, "id": "one"}', partition=0)
        stage.topics.write(stage.source, b'{"to": "queue:b", "in": 0, "id": "one"}', partition=0)
        stage.write(10)
        stage.judge()
        letters = stage.topics.read(stage.refused, 6)
        until(lambda: machine.metric("kafka_refused_total") == 6, "counted")

    by_reason = {letter.headers["everbell-dead-reason"]: letter for letter in letters}
    assert len(by_reason) == 6
    nonsense = next(letter for letter in letters if letter.value == b"{nonsense")
    assert "malformed" in nonsense.headers["everbell-dead-reason"]
    assert (nonsense.key, nonsense.headers["x-from"]) == (b"k", "here")
    assert (nonsense.headers["everbell-dead-topic"], nonsense.headers["everbell-dead-partition"]) == (stage.source, "1")
    for part in ("no value", "give at", "a tenant's name", "payload", "taken by another"):
        assert [reason for reason in by_reason if part in reason], (part, list(by_reason))


def test_without_a_dead_letter_topic_the_log_names_the_refused_record(tmp_path: Path, stage: KafkaStage) -> None:
    stage.be_patient()
    options = [*stage.options, "--kafka-dead-letters", f"{stage.refused}-missing"]
    with Machine(tmp_path, *options) as machine:
        stage.topics.write(stage.source, b"{nonsense", partition=1)
        stage.write(10)
        stage.judge()
        until(lambda: machine.metric("kafka_letters_lost_total") == 1, "counted")
        assert f"no dead letter could be written for the record at {stage.source}:1:0" in machine.log


def test_new_partitions_of_a_topic_are_read(tmp_path: Path, stage: KafkaStage) -> None:
    stage.be_patient()
    with Machine(tmp_path, *stage.options) as machine:
        stage.write(100)
        until(lambda: machine.metric("kafka_records_total") == 100, "read")
        stage.topics.grow(stage.source, 9)
        for partition in range(9):
            event = {"to": "queue:grown", "in": "1h", "id": f"grown-{partition}"}
            stage.topics.write(stage.source, json.dumps(event).encode(), partition=partition)
        until(lambda: machine.metric("kafka_records_total") >= 109, "read")
        for partition in range(9):
            assert machine.event(f"grown-{partition}", "default")["status"] == "scheduled"
        stage.judge()


def test_a_reader_that_is_hours_behind_schedules_for_the_same_due_time(tmp_path: Path, stage: KafkaStage) -> None:
    stage.be_patient()
    written_at = now_ms() - 3 * 3_600_000
    for index in range(200):
        event = {"to": f"kafka://{stage.sink}", "in": "2h" if index % 2 else "4h", "payload": index, "id": f"b-{index}"}
        stage.topics.send(stage.source, json.dumps(event).encode(), timestamp=written_at + index)
    stage.topics.flush()
    with Machine(tmp_path, *stage.options) as machine:
        until(lambda: machine.metric("kafka_records_total") == 200, "read")
        overdue = stage.topics.read(stage.sink, 100)
        ahead = machine.call("GET", "/v1/tenants/default/events/b-0").json

    assert {int(one.value) % 2 for one in overdue} == {1}
    assert ahead["status"] == "scheduled"
    assert {one.headers["ce_time"] for one in overdue if one.value == b"1"} == {
        format_instant(written_at + 1 + 7_200_000)
    }


def test_a_quota_slows_reading_down_and_refuses_no_record(tmp_path: Path, stage: KafkaStage) -> None:
    config = "[defaults]\nlimits = { rate = 150 }\n"
    with Machine(tmp_path, *stage.options, config=config) as machine:
        stage.write(400, keys=20)
        until(lambda: machine.metric("kafka_events_total") > 0, "some read")
        stage.write(100, keys=20)
        stage.judge()
        assert "reading from Kafka pauses" in machine.log
        assert machine.metric("kafka_refused_total") == 0


def test_reading_continues_when_brokers_come_back(tmp_path: Path, fragile: KafkaServer) -> None:
    stage = KafkaStage(tmp_path, fragile)
    with Machine(tmp_path, *stage.options, *ONE, config="[defaults]\ntimeout = '2s'\n") as machine:
        stage.write(500, keys=20)
        until(lambda: machine.metric("kafka_events_total") > 0, "some read")
        fragile.kill()
        until(lambda: not machine.call("GET", "/healthz").json["kafka"]["ok"], "said")
        fragile.start()
        stage.write(500, keys=20)
        stage.judge(is_disturbed=True)
        stage.until_read()
        until(lambda: machine.call("GET", "/healthz").json["kafka"]["ok"], "said")


def test_nodes_share_the_topics_partitions_and_take_over_from_dead_nodes(tmp_path: Path, stage: KafkaStage) -> None:
    with Fleet(tmp_path, shared.postgres().fresh_schema(), *stage.options, "--lease", "1s") as fleet:
        fleet.add("n1")
        stage.write(300, keys=20)
        fleet.add("n2")
        fleet.until_balanced("n1", "n2")
        until(lambda: _read_by_each(stage, fleet), "both read")
        fleet.kill("n1")
        stage.write(300, keys=20)
        stage.until_read()
        fleet.add("n3")
        stage.write(300, keys=20)
        fleet.shrink("n2")
        stage.write(100, keys=20)
        stage.judge(restarts=10, is_disturbed=True)
        stage.until_read()


def test_an_unavailable_store_pauses_reading_and_loses_no_record(tmp_path: Path, stage: KafkaStage) -> None:
    with shared.had(PostgresServer) as database:
        options = ["--store", database.fresh_schema(), *stage.options]
        with Machine(tmp_path, *options) as machine:
            stage.write(200, keys=10)
            until(lambda: machine.metric("kafka_events_total") > 0, "some read")
            database.stop()
            stage.write(200, keys=10)
            until(lambda: "reading from Kafka pauses" in machine.log, "paused")
            database.start()
            stage.judge(restarts=5, is_disturbed=True)  # A node that lost the log joins again, under new epochs.
            stage.until_read()
            assert machine.metric("kafka_refused_total") == 0


def _read_by_each(stage: KafkaStage, fleet: Fleet) -> bool:
    stage.write(20, keys=20)
    return all(node.metric("kafka_records_total") > 0 for node in fleet.nodes.values())
