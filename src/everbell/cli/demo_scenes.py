"""The scenes of the demo: each shows one feature of Everbell, and the call for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from everbell.cli.demo_stage import DemoStage
from everbell.client.app import App
from everbell.client.awaiting import AsyncClient
from everbell.client.worker import Worker
from everbell.core.occurrence import Occurrence


def delay(stage: DemoStage) -> None:
    """An event rings at its time."""
    stage.title("1. Later")
    stage.explain("Hand over a payload, a target and a time, and forget about it.")
    stage.client.schedule({"say": "hello"}, to=stage.receiver.url, in_="500ms")
    stage.tell("scheduled: say hello, in 500ms")
    arrival = stage.receiver.next()
    stage.tell(f"received: {arrival.payload['say']}, {arrival.late_ms} ms after its time, never before", "green")


def repetition(stage: DemoStage) -> None:
    """An event comes again and again."""
    stage.title("2. Again and again")
    stage.explain("An event may repeat, on a fixed grid, a number of times or until a time.")
    stage.client.schedule({"tick": True}, to=stage.receiver.url, in_="300ms", repeat={"every": "300ms", "count": 3})
    stage.tell("scheduled: a tick every 300ms, 3 times")
    for number in range(1, 4):
        arrival = stage.receiver.next()
        stage.tell(f"received: tick {number}, {arrival.late_ms} ms after its time", "green")


def order(stage: DemoStage) -> None:
    """Events of a key keep their order."""
    stage.title("3. In order")
    stage.explain("Events of one key go one at a time, by their time; a failing one holds up its key, and no other.")
    stage.receiver.failures = 1
    for step, in_ in (("packed", "300ms"), ("shipped", "310ms"), ("billed", "320ms")):
        stage.client.schedule(
            {"order 17": step}, to=stage.receiver.url, key="order-17", in_=in_, retry={"backoff": "600ms"}
        )
    stage.tell("scheduled: packed, shipped and billed for the key order-17; the first attempt will fail")
    for _ in range(4):
        arrival = stage.receiver.next()
        step = arrival.payload["order 17"]
        if arrival.status == 200:
            stage.tell(f"received: {step}, attempt {arrival.attempt}", "green")
        else:
            stage.tell(f"refused: {step}, attempt {arrival.attempt}; the others wait", "yellow")


def retry(stage: DemoStage) -> None:
    """A receiver that fails is tried again."""
    stage.title("4. Until it works")
    stage.explain("A receiver that fails is tried again, after pauses that grow. Every attempt is on record.")
    stage.receiver.failures = 2
    scheduled = stage.client.schedule(
        {"invoice": 4}, to=stage.receiver.url, in_="100ms", retry={"max_attempts": 5, "backoff": "300ms"}
    )
    stage.tell("scheduled: an invoice, for a receiver that is down for two attempts")
    for _ in range(3):
        arrival = stage.receiver.next()
        if arrival.status == 200:
            stage.tell(f"received: the invoice, attempt {arrival.attempt}", "green")
        else:
            stage.tell(f"failed: attempt {arrival.attempt}, status {arrival.status}", "yellow")
    event = stage.client.get(scheduled.id)
    while event.status != "delivered":
        stage.wait(0.02)
        event = stage.client.get(scheduled.id)
    record = ", ".join(f"{attempt.result} after {attempt.duration_ms} ms" for attempt in event.attempts)
    stage.tell(f"on record: {event.status}, {event.attempt_count} attempts: {record}")


def cancellation(stage: DemoStage) -> None:
    """A cancelled event does not ring."""
    stage.title("5. Never mind")
    stage.explain("Once a cancel is acknowledged, no attempt starts any more. An id of your own makes it easy to name.")
    stage.client.schedule({"order 18": "timed out"}, to=stage.receiver.url, in_="700ms", id="order-18-timeout")
    stage.tell("scheduled: order-18-timeout, in 700ms")
    event = stage.client.cancel("order-18-timeout")
    stage.tell("cancelled: order-18-timeout, the order was paid in time")
    stage.wait(1.0)
    quiet = stage.receiver.is_quiet()
    stage.tell(
        f"nothing came, and the event is {event.status}" if quiet else "it came anyway!", "green" if quiet else "red"
    )


def worker(stage: DemoStage) -> None:
    """Workers pull due events."""
    stage.title("6. Pulled by workers")
    stage.explain("Events to a queue wait for workers: functions of yours, anywhere, as many as you like.")
    names = ("Ada", "Grace", "Barbara")
    batch = stage.client.schedule_many({"payload": name, "to": "queue:greetings", "in": "300ms"} for name in names)
    stage.tell(f"scheduled: {batch.accepted} greetings to queue:greetings, in one request")
    asyncio.run(_work(stage, len(names)))


async def _work(stage: DemoStage, count: int) -> None:
    app = App()
    remaining = count

    @app.on("greetings")
    async def greet(event: Occurrence) -> None:
        nonlocal remaining
        stage.tell(f"handled: hello {event.payload}", "green")
        remaining -= 1
        if not remaining:
            running.stop()

    async with AsyncClient(stage.server) as client:
        running = Worker(app, client, concurrency=4)
        await running.run()


SCENES: tuple[Callable[[DemoStage], None], ...] = (delay, repetition, order, retry, cancellation, worker)
