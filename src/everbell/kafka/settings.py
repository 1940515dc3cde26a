"""The settings of Kafka: clusters by name, and the topics to read from one of them.

Properties of librdkafka (TLS, SASL, compression, …) are passed through from a file of `name=value` lines, as Kafka's
own programs read it. So secrets are neither on a command line nor in our settings. Properties that would break a
promise are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everbell.core.kafka_targets import KafkaTargets
from everbell.core.target import check_topic, is_cluster_name
from everbell.core.tenant import check_tenant_name
from everbell.errors import InvalidInput
from everbell.facades.pagerduty_task import POLICY as TASK_POLICY

OWN_PROPERTIES = frozenset(
    "acks allow.auto.create.topics auto.offset.reset bootstrap.servers enable.auto.commit enable.auto.offset.store "
    "enable.idempotence enable.partition.eof group.id max.in.flight max.in.flight.requests.per.connection "
    "message.timeout.ms delivery.timeout.ms metadata.broker.list request.required.acks retries "
    "message.send.max.retries transactional.id".split()
)


class KafkaCluster(Struct, frozen=True):
    """The brokers and properties of a cluster."""

    brokers: str
    properties: dict[str, str] = {}


TopicFormat = Literal["everbell", "bigben", "pagerduty"]
FORMATS: tuple[TopicFormat, ...] = get_args(TopicFormat)


class KafkaTopic(Struct, frozen=True):
    """A topic to read."""

    name: str
    tenant: str | None = None
    """The tenant of the topic's events. None: the record's header decides, else the default tenant."""
    format: TopicFormat = "everbell"
    """The format of its records: Everbell's own, or that of another product."""


class KafkaSettings(Struct, frozen=True):
    """All settings of Kafka; empty without a cluster."""

    clusters: dict[str, KafkaCluster] = {}
    """Clusters by name; the default cluster is ""."""
    topics: tuple[KafkaTopic, ...] = ()
    """Topics of the default cluster."""
    group: str = "everbell"
    dead_letters: str = "everbell-dead-letters"

    @property
    def targets(self) -> KafkaTargets:
        """The topics that events may go to. A named cluster with a broker of the default one is the same cluster."""
        own = {topic.name for topic in self.topics} | ({self.dead_letters} if self.topics else set())
        brokers = set(self.clusters[""].brokers.split(",")) if "" in self.clusters else set()
        same = [name for name, cluster in self.clusters.items() if brokers & set(cluster.brokers.split(","))]
        reserved = frozenset((cluster, topic) for cluster in same for topic in own)
        return KafkaTargets(frozenset(self.clusters), reserved)

    @property
    def brokers(self) -> dict[str, str]:
        """The brokers of each cluster, by its name."""
        return {name: cluster.brokers for name, cluster in self.clusters.items()}


class ClusterSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A named cluster in the settings file."""

    brokers: str | list[str]
    properties: str = ""


def kafka_settings(
    brokers: str,
    properties: Mapping[str, str],
    topics: tuple[KafkaTopic, ...],
    group: str,
    dead_letters: str,
    named: Mapping[str, Any],
) -> KafkaSettings:
    """Check all settings together. Raises `InvalidInput` with the name of the setting."""
    clusters = {name: _named_cluster(name, table) for name, table in named.items()}
    if brokers:
        clusters[""] = KafkaCluster(brokers, dict(properties))
    elif topics:
        raise InvalidInput("name the brokers that they are read from, as in --kafka-brokers localhost:9092", "topics")
    elif properties:
        raise InvalidInput("name the brokers that they are for, as in --kafka-brokers localhost:9092", "properties")
    if any(topic.name == dead_letters for topic in topics):
        raise InvalidInput("a topic that is read cannot take what was refused: it would come again", "dead_letters")
    return KafkaSettings(clusters, topics, group, dead_letters)


def read_brokers(text: str) -> str:
    """Parse bootstrap brokers: `HOST:PORT`, separated by commas."""
    brokers = [broker.strip() for broker in text.split(",") if broker.strip()]
    for broker in brokers:
        host, colon, port = broker.rpartition(":")
        if not host or not colon or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise InvalidInput(f"{broker!r} is not a broker; write HOST:PORT,…, such as localhost:9092")
    return ",".join(brokers)


def read_topics(text: str) -> tuple[KafkaTopic, ...]:
    """Parse topics separated by commas, each perhaps with tenant and format: `orders=shop,tasks=pd:pagerduty`."""
    topics = [_read_topic(part) for part in filter(None, map(str.strip, text.split(",")))]
    names = [topic.name for topic in topics]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{name!r} is there twice")
    return tuple(topics)


def _read_topic(text: str) -> KafkaTopic:
    place, colon, format_name = text.partition(":")
    name, equals, tenant = place.partition("=")
    topic = KafkaTopic(read_topic(name), check_tenant_name(tenant) if equals else None)
    if not colon:
        return topic
    for known in FORMATS:
        if known == format_name:
            if known == "pagerduty" and topic.tenant is None:
                raise InvalidInput(f"a topic with tasks needs a tenant: write {name}=TENANT:pagerduty")
            if known == "bigben" and topic.tenant is not None:
                raise InvalidInput(f"requests of BigBen name their tenants: write {name}:bigben")
            return replace(topic, format=known)
    raise InvalidInput(f"there is no format {format_name[:64]!r}; there are {', '.join(FORMATS)}")


def policies_of_topics(topics: Sequence[KafkaTopic]) -> dict[str, Mapping[str, Any]]:
    """The fields that the formats of topics set in the policies of their tenants, by tenant."""
    return {topic.tenant: TASK_POLICY for topic in topics if topic.format == "pagerduty" and topic.tenant is not None}


def read_topic(text: str) -> str:
    """Parse the name of a topic."""
    try:
        return check_topic(text.strip(), "topic")
    except InvalidInput as wrong:
        raise InvalidInput(wrong.reason) from None


def read_group(text: str) -> str:
    """Parse the name of a consumer group."""
    if not 0 < len(text) <= 255 or not text.isprintable():
        raise InvalidInput(f"{text[:64]!r} is not the name of a consumer group: 1 to 255 printable characters")
    return text


def read_properties(path: str) -> dict[str, str]:
    """Read the properties in a file; an empty path has none."""
    if not path:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as wrong:
        raise InvalidInput(f"cannot read {path}: {wrong.strerror}") from None
    except ValueError:
        raise InvalidInput(f"{path} is not text") from None
    properties = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            name, equals, value = stripped.partition("=")
            if not equals:
                raise InvalidInput(f"{path}, line {number}: write name=value")
            properties[_property(name.strip())] = value.strip()
    return properties


def _named_cluster(name: str, table: object) -> KafkaCluster:
    where = f"clusters.{name}"
    if not is_cluster_name(name):
        raise InvalidInput("is not a name: letters, digits, dot, dash and underscore, at most 128", where)
    try:
        spec = msgspec.convert(table, ClusterSpec)
        brokers = read_brokers(spec.brokers if isinstance(spec.brokers, str) else ",".join(spec.brokers))
        if not brokers:
            raise InvalidInput("brokers is empty; write HOST:PORT,…")
        return KafkaCluster(brokers, read_properties(spec.properties))
    except msgspec.ValidationError as wrong:
        raise InvalidInput(str(wrong), where) from None
    except InvalidInput as wrong:
        raise InvalidInput(wrong.reason, where) from None


def _property(name: str) -> str:
    if name in OWN_PROPERTIES:
        raise InvalidInput(f"the property {name} is Everbell's own: what it promises depends on it; leave it out")
    return name
