"""Delivery to a real Kafka: the content of records, the reasons of dead events, and unavailable brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.kafka_stage import RETRY, KafkaStage
from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver
from tests.services import shared
from tests.services.kafka import KafkaServer


@pytest.fixture
def stage(tmp_path: Path) -> KafkaStage:
    return KafkaStage(tmp_path, shared.kafka())


@pytest.fixture
def fragile() -> KafkaServer:
    return shared.fragile_kafka()


def test_a_record_has_the_events_key_and_the_headers_that_identify_duplicates(
    tmp_path: Path, stage: KafkaStage
) -> None:
    with Machine(tmp_path, *stage.out_options) as machine:
        event_id = machine.schedule(f"kafka://{stage.sink}", {"a": 1}, key="order-17", headers={"x-team": "orders"})
        (record,) = stage.topics.read(stage.sink, 1)
        event = machine.until_status(event_id, "delivered")

    assert (record.key, record.value) == (b"order-17", b'{"a": 1}')
    assert record.headers["ce_id"] == event_id
    assert record.headers["ce_source"] == "/v1/tenants/shop"
    assert record.headers["x-team"] == "orders"
    assert record.headers["everbell-due"] == event["at"]
    assert (record.headers["everbell-occurrence"], record.headers["everbell-attempt"]) == ("1", "1")


def test_a_recurring_event_writes_one_record_per_occurrence(tmp_path: Path, stage: KafkaStage) -> None:
    with Machine(tmp_path, *stage.out_options) as machine:
        event_id = machine.schedule(f"kafka://{stage.sink}", 1, repeat={"every": "50ms", "count": 3})
        records = stage.topics.read(stage.sink, 3)

    assert sorted(record.headers["ce_id"] for record in records) == [f"{event_id}:{number}" for number in (1, 2, 3)]


def test_an_event_for_a_missing_topic_is_dead_and_can_be_redriven_when_the_topic_exists(
    tmp_path: Path, stage: KafkaStage
) -> None:
    missing = f"{stage.sink}-missing"
    with Machine(tmp_path, *stage.out_options) as machine:
        event_id = machine.schedule(f"kafka://{missing}")
        dead = machine.until_status(event_id, "dead")
        assert dead["reason"] == f"there is no topic '{missing}': create it, then redrive the event"
        assert dead["attempt_count"] == 1
        stage.topics.create(missing)
        assert machine.call("POST", "/v1/tenants/shop/dead/redrive", {"ids": [event_id]}).status == 200
        stage.topics.read(missing, 1)


def test_an_event_that_is_too_large_for_its_topic_is_dead_and_its_neighbours_are_delivered(
    tmp_path: Path, stage: KafkaStage
) -> None:
    narrow = stage.topics.new(max_message_bytes="20000")
    with Machine(tmp_path, *stage.out_options) as machine:
        # Each record is small enough; all of them in one batch are too large, and so is one of them alone.
        small: list[dict[str, object]] = [
            {"to": f"kafka://{narrow}", "in": "300ms", "payload": f"{index:0900}"} for index in range(60)
        ]
        large: dict[str, object] = {"to": f"kafka://{narrow}", "in": "300ms", "payload": "x" * 30_000}
        ids = machine.schedule_many([*small[:30], large, *small[30:]])
        records = stage.topics.read(narrow, 60)
        dead = machine.until_status(ids[30], "dead")

    assert "larger than the topic" in dead["reason"]
    assert len({record.value for record in records}) == 60


def test_a_target_names_a_kafka_cluster_of_the_settings(tmp_path: Path, stage: KafkaStage) -> None:
    address = shared.kafka().address
    config = "[defaults]\ntimeout = '500ms'\n[kafka.clusters.gone]\nbrokers = '127.0.0.1:1'\n"
    config += f"[kafka.clusters.audit]\nbrokers = '{address}'\n"
    with Machine(tmp_path, config=config) as machine:
        machine.schedule(f"kafka://audit/{stage.sink}", "here")
        stage.topics.read(stage.sink, 1)
        answer = machine.call("POST", "/v1/tenants/shop/events", {"to": f"kafka://{stage.sink}", "in": 0})
        assert answer.status == 422
        assert "--kafka-brokers" in answer.json["detail"]
        event_id = machine.schedule("kafka://gone/t", retry=RETRY)
        machine.until_status(event_id, "retrying")
        until(lambda: not machine.call("GET", "/readyz").json["kafka"]["ok"], "said")
        health = machine.call("GET", "/readyz")
        assert health.status == 200
        assert health.json["kafka"]["reason"].startswith("gone: ")


def test_a_kafka_cluster_with_an_unknown_property_is_refused_at_the_start(tmp_path: Path) -> None:
    properties = tmp_path / "wrong.properties"
    properties.write_text("no.such.property=1\n")
    options = ["--kafka-brokers", "127.0.0.1:1", "--kafka-properties", str(properties)]
    machine = Machine(tmp_path, *options)

    assert not machine.tries_to_start()
    assert machine.code == 1
    assert 'No such configuration property: "no.such.property"' in machine.log


@pytest.mark.parametrize("fault", ["stop", "pause"])
def test_unavailable_brokers_delay_their_own_events_and_no_others(
    tmp_path: Path, fragile: KafkaServer, fault: str
) -> None:
    stage = KafkaStage(tmp_path, fragile)
    with (
        Receiver() as receiver,
        Machine(tmp_path, *stage.out_options, config="[defaults]\ntimeout = '2s'\n") as machine,
    ):
        retry = {"max_attempts": 100, "backoff": "500ms", "max_backoff": "2s"}
        events = [{"to": f"kafka://{stage.sink}", "in": 0, "payload": index, "retry": retry} for index in range(1_500)]
        machine.schedule_many(events[:100])
        stage.topics.read(stage.sink, 100)
        if fault == "stop":
            fragile.stop()
        else:
            fragile.pause()
        try:
            machine.schedule_many(events[100:])
            # Other events, even more than would fit beside hanging attempts, are delivered meanwhile.
            machine.schedule_many(
                [{"to": receiver.url("/ok"), "in": 0, "payload": index} for index in range(500)], "blue"
            )
            until(lambda: receiver.counts["/ok"] >= 500, "the other events are delivered")
            assert machine.count("shop", "delivered") <= 100
        finally:
            if fault == "stop":
                fragile.start()
            else:
                fragile.resume()
        got = stage.topics.read_until(stage.sink, lambda got: len({one.value for one in got}) >= len(events))
        until(lambda: machine.metric("delivered_total") >= len(events) + 500, "all delivered")
        assert machine.count("shop", "dead") == 0

    assert {int(one.value) for one in got} == set(range(len(events)))


def test_the_return_of_brokers_is_noticed_without_a_delivery(tmp_path: Path, fragile: KafkaServer) -> None:
    stage = KafkaStage(tmp_path, fragile)
    with Machine(tmp_path, *stage.options) as machine:
        machine.schedule(f"kafka://{stage.sink}")
        stage.topics.read(stage.sink, 1)
        fragile.kill()
        until(lambda: not machine.call("GET", "/healthz").json["kafka"]["ok"], "said")
        fragile.start()
        until(lambda: machine.call("GET", "/healthz").json["kafka"]["ok"], "said")


def test_the_order_of_a_key_survives_killed_brokers(tmp_path: Path, fragile: KafkaServer) -> None:
    stage = KafkaStage(tmp_path, fragile)
    with Machine(tmp_path, *stage.out_options, config="[defaults]\ntimeout = '2s'\n") as machine:
        to = f"kafka://{stage.sink}"
        events = [{"to": to, "in": 0, "payload": index, "key": f"k{index % 5}", "retry": RETRY} for index in range(400)]
        machine.schedule_many(events)
        stage.topics.read(stage.sink, 20)
        fragile.kill()
        fragile.start()
        got = stage.topics.read_until(stage.sink, lambda got: len({one.value for one in got}) >= len(events))

    stage.assert_in_order(got)


def test_a_tenant_cannot_write_to_topics_that_everbell_reads_or_that_its_policy_does_not_list(
    tmp_path: Path, stage: KafkaStage
) -> None:
    """Events that were scheduled before the settings changed are refused when they are delivered."""
    later = stage.topics.new()
    with Machine(tmp_path / "before", *stage.out_options) as machine:
        waiting = [machine.schedule(f"kafka://{topic}", 1, **{"in": "3s"}) for topic in (later, stage.sink)]
        assert machine.stop() == 0
        store = machine.store
    config = f'[tenants.shop]\ntopics = ["{later}*"]\n'
    options = (*stage.out_options, "--kafka-topics", later)
    with Machine(tmp_path / "after", *options, store=store, config=config) as machine:
        for topic, said in ((later, "Everbell reads"), ("everbell-dead-letters", "Everbell"), (stage.sink, "policy")):
            answer = machine.call("POST", "/v1/tenants/shop/events", {"in": 0, "to": f"kafka://{topic}"})
            assert answer.status == 422, answer
            assert said in answer.json["detail"]
        reasons = [machine.until_status(event_id, "dead")["reason"] for event_id in waiting]
        assert "Everbell reads" in reasons[0]
        assert "policy" in reasons[1]
        machine.until_status(machine.schedule(f"kafka://{stage.sink}", tenant="bank"), "delivered", tenant="bank")
