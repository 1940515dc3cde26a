"""The bare work of Kafka, in its own process: fill a topic, or copy each record of it to another.

The loop is that of any careful consumer: an idempotent producer, all in-sync replicas, a report for each record.
"""

from __future__ import annotations

from time import perf_counter, process_time

from confluent_kafka import Consumer, KafkaError, Message, Producer

from everbell.bench.bodies import lines_of
from everbell.bench.dialogue import BenchFailed, plan_told, say
from everbell.bench.plans import KafkaPlan, Sent

_PREPARED = 10_000
_AT_A_TIME = 1_000
_WAIT_S = 0.1


class Passing:
    """Counts the reports of a producer."""

    def __init__(self, brokers: str) -> None:
        self.done = 0
        self.producer = Producer(
            {"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        )

    def report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise BenchFailed(f"a record could not be written: {error}")
        self.done += 1

    def send(self, topic: str, value: bytes | None) -> None:
        """Send a record; fetch reports while the queue is full."""
        while True:
            try:
                self.producer.produce(topic, value, on_delivery=self.report)
                return
            except BufferError:
                self.producer.poll(_WAIT_S)


def fill(plan: KafkaPlan) -> Sent:
    """Write events into a topic."""
    lines = lines_of(_PREPARED, [plan.due_at] * _PREPARED, plan.to)
    passing = Passing(plan.brokers)
    start, cpu = perf_counter(), process_time()
    for number in range(plan.events):
        passing.send(plan.topic, lines[number % _PREPARED])
        if not number % _AT_A_TIME:
            passing.producer.poll(0)
            say({"done": passing.done})
    passing.producer.flush()
    return Sent(perf_counter() - start, 0, passing.done, plan.events - passing.done, process_time() - cpu)


def pass_on(plan: KafkaPlan) -> Sent:
    """Copy a topic to another."""
    passing = Passing(plan.brokers)
    consumer = Consumer(
        {
            "bootstrap.servers": plan.brokers,
            "group.id": plan.group,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
        }
    )
    consumer.subscribe([plan.topic])
    read, start, cpu = 0, 0.0, 0.0
    while passing.done < plan.events:
        messages = consumer.consume(_AT_A_TIME, _WAIT_S if not read else 0)
        if messages and not read:
            start, cpu = perf_counter(), process_time()
        for message in messages:
            passing.send(plan.to, message.value())
        read += len(messages)
        passing.producer.poll(0 if messages else _WAIT_S)
        for message in messages[-1:]:
            consumer.store_offsets(message)
        say({"done": passing.done})
    seconds, cpu_s = perf_counter() - start, process_time() - cpu
    consumer.close()
    return Sent(seconds, 0, passing.done, 0, cpu_s)


if __name__ == "__main__":
    plan = plan_told(KafkaPlan)
    say(pass_on(plan) if plan.group else fill(plan))
