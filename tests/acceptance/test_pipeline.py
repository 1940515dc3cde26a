"""The pipeline: from Kafka, through Cassandra, to Kafka, with three nodes and faults in every part."""

from __future__ import annotations

import json
from pathlib import Path

from everbell.core.time import format_instant
from tests.acceptance.fleet import Fleet
from tests.acceptance.kafka_stage import KafkaStage
from tests.acceptance.machine import now_ms, until
from tests.services import shared
from tests.services.cassandra import CassandraServer

AHEAD = 300
DAY_MS = 86_400_000


def test_each_record_comes_out_once_and_in_order_despite_faults_in_every_part(tmp_path: Path) -> None:
    broker = shared.fragile_kafka()
    stage = KafkaStage(tmp_path, broker)
    with shared.had(CassandraServer) as database:
        store = database.fresh_store()
        with Fleet(tmp_path, store, *stage.options, "--lease", "2s") as fleet:
            fleet.grow("n1", "n2", "n3")
            fleet.until_balanced("n1", "n2", "n3")
            _write_two_weeks(stage)
            stage.write(200, keys=20)
            until(lambda: sum(node.metric("kafka_events_total") for node in fleet.nodes.values()) > 0, "some read")

            fleet.kill("n1")
            stage.write(200, keys=20)

            database.pause()
            stage.write(100, keys=20)
            database.resume()

            fleet.add("n4")  # The partitions of the topics and of the store are redistributed.
            stage.write(200, keys=20)

            broker.kill()
            broker.start()
            stage.write(200, keys=20)

            stage.judge(restarts=20, is_disturbed=True)
            stage.until_read(AHEAD)
            # All events that are due later are stored, once, and unchanged.
            assert fleet.nodes["n4"].count("ahead", "scheduled") == AHEAD
            assert fleet.nodes["n4"].count("default", "dead") == 0


def _write_two_weeks(stage: KafkaStage) -> None:
    start_at = now_ms() + DAY_MS
    for number in range(AHEAD):
        at = format_instant(start_at + number * 14 * DAY_MS // AHEAD)
        event = {"to": f"kafka://{stage.sink}", "at": at, "payload": number}
        stage.topics.send(stage.source, json.dumps(event).encode(), headers=[("everbell-tenant", b"ahead")])
    stage.topics.flush()
