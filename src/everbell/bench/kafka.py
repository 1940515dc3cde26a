"""From Kafka through RocksDB to Kafka, beside a bare loop that reads and writes the same records, in the same run.

Progress is read from the end of the output topic, because `/metrics` through a gateway is up to a second old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from time import perf_counter

from everbell.bench.dialogue import PATIENCE_S, BenchFailed
from everbell.bench.figures import Baseline, Figure, per_event_us
from everbell.bench.goals import KAFKA
from everbell.bench.plans import KafkaPlan, Sent
from everbell.bench.scene import Scene, now_ms, rest
from everbell.bench.stage import BenchStage, Server

_IN, _OUT, _BARE, _REFUSED = "everbell-bench-in", "everbell-bench-out", "everbell-bench-bare", "everbell-bench-refused"
_TOPICS = (_IN, _OUT, _BARE, _REFUSED)
_GROUP, _BARE_GROUP = "everbell-bench", "everbell-bench-bare"
_PARTITIONS = 4
_GATEWAYS = 1  # So that reading, and storing and sending, have a core each.
_LOOK_S = 0.05
_ASK_S = 0.2

CountWritten = Callable[[str], int]
"""The number of records in a topic."""


def kafka(scene: Scene) -> list[Figure]:
    """A topic is filled first; then both read it from beginning to end."""
    if scene.kafka is None:
        raise BenchFailed("name brokers for it: --kafka HOST:PORT")
    brokers = scene.kafka.removeprefix("kafka://")
    count = scene.scale.whole
    gateways = _GATEWAYS if scene.gateways is None else scene.gateways
    with _topics(brokers) as written, BenchStage() as stage:
        _run(stage, scene, "filling a topic", KafkaPlan(brokers, _IN, f"kafka://{_OUT}", count, due_at=now_ms()))
        bare = _run(stage, scene, "bare Kafka", KafkaPlan(brokers, _IN, _BARE, count, _BARE_GROUP))
        config = f'kafka_brokers = "{brokers}"\nkafka_topics = "{_IN}"\nkafka_group = "{_GROUP}"\n'
        config += f'kafka_dead_letters = "{_REFUSED}"\n'
        server, port = stage.server(config=config, gateways=gateways)
        events, seconds, cpu_s = _watched(server, written, scene, count)
        rss_mb = server.usage().rss_bytes / 1e6
        _wait(lambda: _delivered(port), count, _ASK_S)
    baseline = Baseline("bare loop: consume and produce", bare.rate)
    notes = (f"--gateways {gateways}",)
    return [Figure(KAFKA, events / seconds, (baseline,), per_event_us(cpu_s, events), rss_mb, notes=notes)]


def _run(stage: BenchStage, scene: Scene, what: str, plan: KafkaPlan) -> Sent:
    partner = stage.partner("everbell.bench.bare_kafka", plan)
    return Sent(**partner.hear(scene.progress(what, plan.events)))


def _watched(server: Server, written: CountWritten, scene: Scene, count: int) -> tuple[int, float, float]:
    """From the first output record to the last: the number of records, the seconds, and the server's CPU seconds."""
    tell = scene.progress("from Kafka to Kafka", count)
    first = _wait(lambda: written(_OUT), 1, _LOOK_S)
    start, cpu_s = perf_counter(), server.usage().cpu_s
    _wait(lambda: written(_OUT), count, _LOOK_S, tell)
    return max(count - first, 1), perf_counter() - start, server.usage().cpu_s - cpu_s


def _wait(look: Callable[[], int], count: int, pause_s: float, tell: Callable[[int], None] = lambda done: None) -> int:
    """Poll until the number is reached; returns the last number."""
    before, changed_s = -1, perf_counter()
    while (done := look()) < count:
        if done != before:
            before, changed_s = done, perf_counter()
        elif perf_counter() - changed_s > PATIENCE_S:
            raise BenchFailed(f"only {done} of {count} events were delivered")
        tell(done)
        rest(pause_s)
    return done


def _delivered(port: int) -> int:
    """Events with a stored delivery, by the server's metrics."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, HTTPException) as error:
        raise BenchFailed(f"the server does not answer: {error}") from error
    finally:
        connection.close()
    numbers = dict(line.split(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return int(numbers["everbell_delivered_total"])


@contextmanager
def _topics(brokers: str) -> Iterator[CountWritten]:
    """Create topics and remove them afterwards; yields a function that counts the records of one."""
    try:
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic
    except ImportError as error:
        raise BenchFailed("Kafka needs its library: pip install 'everbell[kafka]'") from error
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    watcher = Consumer({"bootstrap.servers": brokers, "log_level": 0, "group.id": f"{_GROUP}-watcher"})

    known: dict[str, int] = {}

    def written(topic: str) -> int:
        places = (TopicPartition(topic, number) for number in range(_PARTITIONS))
        try:
            known[topic] = sum(watcher.get_watermark_offsets(place, PATIENCE_S)[1] for place in places)
        except KafkaException as error:
            # A busy broker may change partition leaders, and the leaders of new partitions take a moment to be known.
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
        return known.get(topic, 0)

    try:
        for future in admin.create_topics([NewTopic(name, _PARTITIONS, 1) for name in _TOPICS]).values():
            future.result(PATIENCE_S)
        try:
            yield written
        finally:
            watcher.close()
            for future in admin.delete_topics(list(_TOPICS)).values():
                future.result(PATIENCE_S)
            for future in admin.delete_consumer_groups([_GROUP, _BARE_GROUP]).values():
                future.exception(PATIENCE_S)
    except KafkaException as error:
        raise BenchFailed(f"Kafka cannot be used: {error.args[0].str()}") from error
