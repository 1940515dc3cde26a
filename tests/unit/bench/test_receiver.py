from __future__ import annotations

import asyncio

from everbell.bench.plans import Counted, ReceiverOrder, ReceiverPlan
from everbell.bench.receiver import BenchReceiver
from everbell.bench.wire import request, split_message
from everbell.clock import wall_ns
from everbell.core.time import format_instant


def deliver(receiver: BenchReceiver, message: bytes) -> None:
    bounds = split_message(message)
    assert bounds is not None
    receiver.take(message, *bounds)


def single(path: str, due: int) -> bytes:
    head, gap, body = request(path, b"{}").partition(b"\r\n\r\n")
    return head + b"\r\neverbell-due: " + format_instant(due).encode() + gap + body


def report(receiver: BenchReceiver, order: ReceiverOrder) -> dict[str, Counted]:
    return asyncio.run(receiver.carry_out(order))


def test_single_events_and_batches_are_counted_by_path() -> None:
    receiver = BenchReceiver(ReceiverPlan())
    deliver(receiver, single("/one", 1_700_000_000_000))
    deliver(receiver, request("/many", b'[{"specversion":"1.0"},{"specversion":"1.0"}]'))

    came = report(receiver, ReceiverOrder({"/one": 1, "/many": 2}))

    assert {path: counted.count for path, counted in came.items()} == {"/one": 1, "/many": 2}
    assert came["/one"].lateness is None, "nobody asked"


def test_lateness_is_by_the_receivers_clock() -> None:
    receiver = BenchReceiver(ReceiverPlan(lateness=True))
    deliver(receiver, single("/past", 1_000))
    deliver(receiver, single("/future", 32_000_000_000_000))

    came = report(receiver, ReceiverOrder({}))

    past, future = came["/past"].lateness, came["/future"].lateness
    assert past is not None
    assert past.p99_ms > 0
    assert future is not None
    assert future.earliest_ms < 0


def test_arrivals_after_the_limit_are_left_out() -> None:
    receiver = BenchReceiver(ReceiverPlan(lateness=True))
    deliver(receiver, single("/calm", 1_000))
    until_ns = wall_ns()
    deliver(receiver, single("/calm", 1_000))

    calm = report(receiver, ReceiverOrder({}, until_ns))["/calm"]

    assert calm.count == 2
    assert calm.lateness is not None
    assert calm.lateness.count == 1


def test_counting_starts_anew_after_a_report() -> None:
    receiver = BenchReceiver(ReceiverPlan())
    deliver(receiver, single("/one", 1_000))
    report(receiver, ReceiverOrder({}))

    assert report(receiver, ReceiverOrder({})) == {}
