"""`everbell queues` and `everbell targets`: queues with their workers, and the targets that events go to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import FAILED, OK, command
from everbell.cli.printing import print_json
from everbell.cli.reporting import note
from everbell.cli.terminal import Paint, Table, harmless
from everbell.cli.timestamps import roughly
from everbell.clock import SystemClock
from everbell.core.queue_view import QueueView, RecentAttempts, WorkerView
from everbell.core.target_view import TargetView
from everbell.core.time import parse_instant

_QUEUES_NOTES = """\
examples:
  everbell queues                                depth, oldest wait, leases, throughput and workers of each queue
  everbell queues --json | jq '.queues[] | select(.stalled)'
  everbell queues > /dev/null || echo stalled    the exit code is 1 when a queue has due events and no worker

A queue is stalled when it has due events and no worker has called for a minute. Workers that send no name are not
listed, but their calls count."""

_TARGETS_NOTES = """\
examples:
  everbell targets                               load, latency, breaker, rate, pause and last error of each target
  everbell targets --json | jq '.targets[] | select(.breaker.state == "open")'

Caps, rates and breakers are per node; the figures are of all nodes together."""

_QUEUE_HEADINGS = ("QUEUE", "WAITING", "OLDEST", "LEASED", "DONE/MIN", "FAILED/MIN", "LAST CALL", "STATE")
_TARGET_HEADINGS = (
    *("TARGET", "WAITING", "OLDEST", "IN FLIGHT", "DONE/MIN", "FAILED/MIN", "P50", "P99", "STATE", "LAST ERROR"),
)


@command(
    "queues",
    "list queues and their workers",
    "List the queues of a tenant, and the workers that pull from them.",
    _QUEUES_NOTES,
    add_server_options,
)
def _queues(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        view = client.queues()
    if args.json:
        print_json(view)
    else:
        _print_queues(view.queues)
        _warn(view.unheard)
    return FAILED if any(queue.stalled for queue in view.queues) else OK


@command(
    "targets",
    "list the targets of events",
    "List the targets that the events of a tenant go to.",
    _TARGETS_NOTES,
    add_server_options,
)
def _targets(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        view = client.targets()
    if args.json:
        print_json(view)
        return OK
    if not view.targets:
        note("no event is due soon")
    headings = (
        "TARGET",
        "WAITING",
        "OLDEST",
        "IN FLIGHT",
        "DELIVERED/MIN",
        "FAILED/MIN",
        "P50",
        "P99",
        "STATE",
        "ERROR",
    )
    Table(headings, Paint()).print([_target_row(target) for target in view.targets])
    _warn(view.unheard)
    return OK


def _print_queues(queues: Sequence[QueueView]) -> None:
    if not queues:
        note("no queue has due events, and no worker called")
        return
    now, paint = SystemClock().now(), Paint()
    Table(_QUEUE_HEADINGS, paint).print([_queue_row(queue, now) for queue in queues])
    workers = [_worker_row(queue.name, worker, now) for queue in queues for worker in queue.workers]
    if workers:
        print()
        Table(("QUEUE", "WORKER", "HOST", "VERSION", "LAST CALL"), paint).print(workers)


def _queue_row(queue: QueueView, now: int) -> tuple[str, ...]:
    state = "no worker" if queue.stalled else "paused" if queue.paused is not None else "ok"
    return (
        harmless(queue.name, 48),
        f"{queue.waiting:,}{'+' if queue.more else ''}",
        "" if queue.oldest_wait_ms is None else roughly(queue.oldest_wait_ms),
        f"{queue.in_flight:,}",
        *_attempts(queue.last_minute),
        "never" if queue.last_contact is None else _ago(queue.last_contact, now),
        state,
    )


def _worker_row(queue: str, worker: WorkerView, now: int) -> tuple[str, ...]:
    return (
        harmless(queue, 32),
        harmless(worker.name, 48),
        harmless(worker.host or "", 32),
        harmless(worker.version or "", 16),
        _ago(worker.last_contact, now),
    )


def _target_row(target: TargetView) -> tuple[str, ...]:
    recent, error = target.last_minute, target.last_error
    return (
        harmless(target.target, 48),
        f"{target.waiting:,}{'+' if target.more else ''}",
        "" if target.oldest_wait_ms is None else roughly(target.oldest_wait_ms),
        f"{target.in_flight:,}" if target.cap is None else f"{target.in_flight:,} of {target.cap:,}",
        *_attempts(recent),
        "" if recent.p50_ms is None else roughly(recent.p50_ms),
        "" if recent.p99_ms is None else roughly(recent.p99_ms),
        _state(target),
        "" if error is None else harmless(f"{error.code or ''} {error.reason or ''}".strip(), 60),
    )


def _state(target: TargetView) -> str:
    if target.paused is not None:
        return "paused"
    if target.breaker is not None and target.breaker.state != "closed":
        return f"breaker {target.breaker.state}"
    return "rate limited" if target.rate is not None and target.rate.until is not None else "ok"


def _attempts(recent: RecentAttempts) -> tuple[str, str]:
    return f"{recent.delivered:,}", f"{recent.failed:,}"


def _ago(time: str, now: int) -> str:
    return f"{roughly(max(now - parse_instant(time), 0))} ago"


def _warn(unheard: Sequence[str]) -> None:
    if unheard:
        note(f"no answer from {', '.join(map(harmless, unheard))}: figures may be too low")
