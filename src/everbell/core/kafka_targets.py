"""The Kafka topics that events may be delivered to.

Everbell reads some topics itself: records there become events, and a header may name their tenant. A tenant that could
write to such a topic could schedule events as another tenant. So these topics, and the topic of dead letters, are never
targets. The policy of a tenant may restrict the others (`topics`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from everbell.core.target import kafka_place
from everbell.errors import InvalidInput

PATTERN_LENGTH_MAX = 400


class KafkaTargets(Struct, frozen=True):
    """The clusters that can be reached, and the topics in them that are not for deliveries."""

    clusters: frozenset[str] = frozenset()
    """By name; the default cluster is ""."""
    reserved: frozenset[tuple[str, str]] = frozenset()
    """Cluster and topic."""

    def check(self, to: str) -> None:
        """Refuse a `kafka://` target that cannot be reached, or is reserved. Raises `InvalidInput`."""
        cluster, topic = kafka_place(to)
        if cluster not in self.clusters:
            if cluster:
                raise InvalidInput(f"there is no Kafka cluster {cluster!r}: add [kafka.clusters.{cluster}]", "to")
            raise InvalidInput("there is no Kafka cluster: start the server with --kafka-brokers HOST:PORT", "to")
        if (cluster, topic) in self.reserved:
            raise InvalidInput(f"{topic!r} is a topic that Everbell reads, or its dead letters: choose another", "to")


NO_KAFKA = KafkaTargets()


def check_topics(to: str, topics: tuple[str, ...] | None) -> None:
    """Refuse a `kafka://` target that the `topics` of a tenant's policy do not list. Raises `InvalidInput`."""
    if topics is not None and not _is_listed(to, topics):
        raise InvalidInput("this tenant may not write to this topic: its policy lists the others (topics)", "to")


@lru_cache(maxsize=10_000)
def _is_listed(to: str, topics: tuple[str, ...]) -> bool:
    cluster, topic = kafka_place(to)
    place = f"{cluster}/{topic}" if cluster else topic
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), place) for pattern in topics)
