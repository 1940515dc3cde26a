"""The settings of Kafka: their meaning, and the messages about invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from everbell.kafka.settings import KafkaCluster, KafkaTopic
from everbell.node.settings import load
from everbell.node.tenant_tables import SettingsError


def written(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def test_without_brokers_there_is_no_kafka() -> None:
    assert load({}, {}, None).kafka.clusters == {}


def test_the_default_cluster_has_no_name_and_others_have_one(tmp_path: Path) -> None:
    secret = written(tmp_path, "client.properties", "# ours\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n")
    file = written(
        tmp_path,
        "everbell.toml",
        f"""
        kafka_brokers = ["k1:9092", "k2:9092"]
        kafka_topics = ["orders=shop", "payments"]
        [kafka.clusters.audit]
        brokers = "a1:9093"
        properties = "{secret}"
        """,
    )

    kafka = load({"kafka_group": "bell"}, {"EVERBELL_KAFKA_DEAD_LETTERS": "refused"}, file).kafka

    assert kafka.clusters == {
        "": KafkaCluster("k1:9092,k2:9092"),
        "audit": KafkaCluster("a1:9093", {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}),
    }
    assert kafka.topics == (KafkaTopic("orders", "shop"), KafkaTopic("payments"))
    assert (kafka.group, kafka.dead_letters) == ("bell", "refused")


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ({"kafka_brokers": "localhost"}, "--kafka-brokers: 'localhost' is not a broker; write HOST:PORT"),
        ({"kafka_brokers": "k:0"}, "not a broker"),
        ({"kafka_topics": "orders"}, "--kafka-topics: name the brokers"),
        ({"kafka_brokers": "k:1", "kafka_topics": "a b"}, "--kafka-topics: 'a b' is not a topic"),
        ({"kafka_brokers": "k:1", "kafka_topics": "a,a"}, "'a' is there twice"),
        ({"kafka_brokers": "k:1", "kafka_topics": "a=-"}, "a tenant's name has"),
        (
            {"kafka_brokers": "k:1", "kafka_topics": "a", "kafka_dead_letters": "a"},
            "--kafka-dead-letters: a topic that",
        ),
        ({"kafka_dead_letters": ""}, "is not a topic"),
        ({"kafka_group": ""}, "is not the name of a consumer group"),
        ({"kafka_brokers": "k:1", "kafka_properties": "/nowhere"}, "cannot read /nowhere"),
    ],
)
def test_an_invalid_setting_is_refused_with_advice(flags: dict[str, str], advice: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(flags, {}, None)

    assert advice in str(refused.value)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("acks=1", "the property acks is Everbell's own"),
        ("enable.auto.commit=true", "Everbell's own"),
        ("nonsense", "line 2: write name=value"),
    ],
)
def test_properties_that_would_break_a_promise_are_refused(line: str, advice: str, tmp_path: Path) -> None:
    file = written(tmp_path, "client.properties", f"linger.ms=1\n{line}\n")

    with pytest.raises(SettingsError) as refused:
        load({"kafka_brokers": "k:1", "kafka_properties": file}, {}, None)

    assert advice in str(refused.value)


def test_properties_need_a_cluster(tmp_path: Path) -> None:
    file = written(tmp_path, "client.properties", "linger.ms=1\n")

    with pytest.raises(SettingsError, match="--kafka-properties: name the brokers"):
        load({"kafka_properties": file}, {}, None)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("[kafka]\nbrokers = 'k:1'", "[kafka.clusters.NAME] in it, and nothing else"),
        ("kafka = 1", "[kafka.clusters.NAME] in it, and nothing else"),
        ("[kafka.clusters.audit]\n", "kafka.clusters.audit: Object missing required field `brokers`"),
        ("[kafka.clusters.audit]\nbrokers = ''", "brokers is empty"),
        ("[kafka.clusters.audit]\nbrokers = 'k:1'\nacks = 1", "unknown field `acks`"),
        ("[kafka.clusters.'a/b']\nbrokers = 'k:1'", "is not a name"),
    ],
)
def test_a_wrong_table_of_a_cluster_is_refused(text: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load({}, {}, written(tmp_path, "everbell.toml", text))

    assert advice in str(refused.value)
