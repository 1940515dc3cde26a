"""The meaning of Kafka's errors."""

from __future__ import annotations

from confluent_kafka import KafkaError

from everbell.kafka.errors import trouble_of

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
DENIED = KafkaError(KafkaError._AUTHENTICATION, "the password is wrong")


def test_that_all_brokers_are_down_is_said_where_nothing_better_is_known() -> None:
    assert trouble_of(DOWN, None) == "1/1 brokers are down"
    assert trouble_of(DENIED, "1/1 brokers are down") == "the password is wrong"
    assert trouble_of(DOWN, "the password is wrong") == "the password is wrong"
