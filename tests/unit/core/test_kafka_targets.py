"""Which Kafka topics events may be delivered to."""

from __future__ import annotations

import pytest

from everbell.core.kafka_targets import check_topics
from everbell.errors import InvalidInput
from everbell.kafka.settings import KafkaCluster, KafkaSettings, KafkaTopic

SETTINGS = KafkaSettings(
    {"": KafkaCluster("k1:9092,k2:9092"), "same": KafkaCluster("k2:9092"), "other": KafkaCluster("o1:9092")},
    (KafkaTopic("intake", None), KafkaTopic("orders", "shop")),
    dead_letters="letters",
)


@pytest.mark.parametrize("to", ["intake", "orders", "letters", "same/intake", "same/letters"])
def test_topics_that_everbell_reads_are_no_targets(to: str) -> None:
    """A tenant that writes there could schedule events as another tenant."""
    with pytest.raises(InvalidInput, match="Everbell reads"):
        SETTINGS.targets.check(f"kafka://{to}")


@pytest.mark.parametrize("to", ["results", "intake2", "other/intake", "other/letters"])
def test_other_topics_are(to: str) -> None:
    SETTINGS.targets.check(f"kafka://{to}")


def test_the_name_of_the_dead_letters_is_free_while_no_topic_is_read() -> None:
    KafkaSettings({"": KafkaCluster("k1:9092")}).targets.check("kafka://everbell-dead-letters")


@pytest.mark.parametrize(
    ("to", "topics", "allowed"),
    [
        ("orders", None, True),
        ("orders", (), False),
        ("orders", ("orders",), True),
        ("orders2", ("orders",), False),
        ("audit-eu", ("orders", "audit-*"), True),
        ("Audit-eu", ("audit-*",), False),
        ("other/orders", ("orders",), False),
        ("other/orders", ("other/*",), True),
    ],
)
def test_a_policy_lists_the_topics_of_a_tenant(to: str, topics: tuple[str, ...] | None, allowed: bool) -> None:
    if allowed:
        check_topics(f"kafka://{to}", topics)
    else:
        with pytest.raises(InvalidInput, match="policy"):
            check_topics(f"kafka://{to}", topics)
