"""The numbers of the way in from Kafka, in the text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Mapping

from everbell.kafka.reading import Tally
from everbell.server.exposition import labelled, metric


def render_kafka(tally: Tally, letters_lost: int, lags: Mapping[str, int]) -> list[str]:
    """All metrics of what one node reads."""
    return [
        *metric("everbell_kafka_records_total", "counter", "Records read since the start.", tally.records),
        *metric("everbell_kafka_events_total", "counter", "Events scheduled from records.", tally.events),
        *metric("everbell_kafka_refused_total", "counter", "Records, or events in them, refused.", tally.refused),
        *metric(
            "everbell_kafka_letters_lost_total",
            "counter",
            "Refused records that no dead letter could be written for.",
            letters_lost,
        ),
        *labelled(
            "everbell_kafka_lag_records",
            "gauge",
            "Records that are not read yet, by topic, of the partitions that are read here.",
            "topic",
            lags,
        ),
    ]
