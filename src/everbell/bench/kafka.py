"""From Kafka through RocksDB to Kafka, beside a bare loop that reads and writes the same records, in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from time import perf_counter

from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Baseline, Figure, per_event_us
from everbell.bench.goals import KAFKA
from everbell.bench.plans import KafkaPlan, Sent
from everbell.bench.scene import PATIENCE_S, Scene, now_ms, rest
from everbell.bench.stage import Server, Stage

_TOPICS = ("everbell-bench-in", "everbell-bench-out", "everbell-bench-bare", "everbell-bench-refused")
_PARTITIONS = 4
_LOOK_S = 0.2
_LOOKS_MAX = int(PATIENCE_S / _LOOK_S)


def kafka(scene: Scene) -> list[Figure]:
    """A topic is filled first; then both read it from its beginning to its end."""
    if scene.kafka is None:
        raise BenchFailed("name brokers for it: --kafka HOST:PORT")
    brokers = scene.kafka.removeprefix("kafka://")
    count = scene.scale.whole
    with _topics(brokers), Stage() as stage:
        filling = KafkaPlan(brokers, _TOPICS[0], f"kafka://{_TOPICS[1]}", count, due_at=now_ms())
        _run(stage, scene, "filling a topic", filling)
        bare = _run(
            stage, scene, "bare Kafka", KafkaPlan(brokers, _TOPICS[0], _TOPICS[2], count, "everbell-bench-bare")
        )
        config = f'kafka_brokers = "{brokers}"\nkafka_topics = "{_TOPICS[0]}"\nkafka_group = "everbell-bench"\n'
        config += f'kafka_dead_letters = "{_TOPICS[3]}"\n'
        server, port = stage.server(config=config)
        seconds, cpu_s = _watched(server, port, scene, count)
        rss_mb = server.usage().rss_bytes / 1e6
    baseline = Baseline("bare loop: consume and produce", bare.rate)
    return [Figure(KAFKA, count / seconds, (baseline,), per_event_us(cpu_s, count), rss_mb)]


def _run(stage: Stage, scene: Scene, what: str, plan: KafkaPlan) -> Sent:
    partner = stage.partner("everbell.bench.bare_kafka", plan)
    return Sent(**partner.hear(PATIENCE_S, scene.progress(what, plan.events)))


def _watched(server: Server, port: int, scene: Scene, count: int) -> tuple[float, float]:
    """The seconds from the first record that is read to the last that is delivered, and the CPU time of the server."""
    tell = scene.progress("from Kafka to Kafka", count)
    start = cpu_s = 0.0
    looks, before = 0, -1
    while True:
        read, delivered = _progress(port)
        if not start and read:
            start, cpu_s = perf_counter(), server.usage().cpu_s
        if delivered >= count:
            return perf_counter() - start, server.usage().cpu_s - cpu_s
        looks = looks + 1 if delivered == before else 0
        if looks > _LOOKS_MAX:
            raise BenchFailed(f"only {delivered} of {count} events were delivered")
        before = delivered
        tell(delivered)
        rest(_LOOK_S)


def _progress(port: int) -> tuple[int, int]:
    """Records read and events delivered so far."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, HTTPException) as error:
        raise BenchFailed(f"the server does not answer: {error}") from error
    finally:
        connection.close()
    numbers = dict(line.split(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return int(numbers["everbell_kafka_records_total"]), int(numbers["everbell_delivered_total"])


@contextmanager
def _topics(brokers: str) -> Iterator[None]:
    """Topics of our own, which go afterwards."""
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic
    except ImportError as error:
        raise BenchFailed("Kafka needs its library: pip install 'everbell[kafka]'") from error
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    try:
        for future in admin.create_topics([NewTopic(name, _PARTITIONS, 1) for name in _TOPICS]).values():
            future.result(PATIENCE_S)
        try:
            yield
        finally:
            for future in admin.delete_topics(list(_TOPICS)).values():
                future.result(PATIENCE_S)
            for future in admin.delete_consumer_groups(["everbell-bench", "everbell-bench-bare"]).values():
                future.exception(PATIENCE_S)
    except KafkaException as error:
        raise BenchFailed(f"Kafka cannot be used: {error.args[0].str()}") from error
