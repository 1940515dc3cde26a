"""The metrics of reading from Kafka, in the text format of Prometheus."""

from __future__ import annotations

from everbell.core.exposition import labelled, metric
from everbell.kafka.readers import Readers


def render_kafka(readers: Readers) -> list[str]:
    """All metrics of a node's readers."""
    return [
        *metric("everbell_kafka_records_total", "counter", "Records read since the start.", readers.records),
        *metric("everbell_kafka_events_total", "counter", "Events scheduled from records.", readers.events),
        *metric("everbell_kafka_refused_total", "counter", "Records, or events in them, refused.", readers.refused),
        *metric(
            "everbell_kafka_letters_lost_total",
            "counter",
            "Refused records that no dead letter could be written for.",
            readers.letters_lost,
        ),
        *labelled(
            "everbell_kafka_lag_records",
            "gauge",
            "Records that are not read yet, by topic, of the partitions that are read here.",
            "topic",
            readers.lags,
        ),
    ]
