"""`everbell top`: the cluster, live."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from threading import Event
from typing import Any

from everbell.cli.options import add_server_options, duration_s, open_client, positive
from everbell.cli.parser import OK, argument, command
from everbell.cli.printing import print_json
from everbell.cli.status import print_heading, print_replicas, print_transitions
from everbell.cli.terminal import Paint, Table, harmless
from everbell.client.blocking import Client
from everbell.client.samples import Samples, read_samples
from everbell.clock import Clock, SystemClock
from everbell.core.cluster.view import ClusterView, MemberView
from everbell.errors import EverbellError

_NOTES = """\
examples:
  everbell top                                   until Ctrl-C
  everbell top --every 5s
  everbell top --count 1 --json                  once, for a program

Every node of the cluster is asked for its own numbers; one that does not answer is shown with dashes, and with null in
JSON. PARTS counts the partitions that a node owns, FLIGHT its attempts in flight, HELD its events of replicas."""

# Short words: a row fits into 80 columns.
_HEADINGS = ("NODE", "STATE", "PARTS", "IN/s", "OUT/s", "RETRY/s", "FLIGHT", "p50 LATE", "p99 LATE", "LEASE")
_ANSWER_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


@command(
    "top",
    "watch the cluster",
    "Watch the cluster, live.",
    _NOTES,
    argument("--every", metavar="TIME", type=duration_s, default=1.0, help="how often to look (1s)"),
    argument("--count", metavar="N", type=positive, help="how many times to look"),
    add_server_options,
)
def _top(args: argparse.Namespace) -> int:
    clock = SystemClock()
    before: dict[str, tuple[int, Samples]] = {}
    left = args.count
    with open_client(args) as client:
        while True:
            view = client.cluster()
            now = {member.incarnation: _ask(member, client, view, args, clock) for member in view.members}
            _show(view, before, now, args.json)
            before = {name: sample for name, sample in now.items() if sample is not None}
            left = None if left is None else left - 1
            if left == 0:
                return OK
            Event().wait(args.every)  # It is never set: a pause that Ctrl-C ends at once.


def _ask(
    member: MemberView, client: Client, view: ClusterView, args: argparse.Namespace, clock: Clock
) -> tuple[int, Samples] | None:
    """The metrics of a node, and the time of its answer."""
    try:
        if member.incarnation == view.incarnation:
            return clock.now(), read_samples(client.metrics())
        if len(member.addresses) > 1 and member.addresses[1]:
            with Client(
                member.addresses[1],
                token=args.token,
                timeout_s=_ANSWER_S,
                ca=args.ca,
                certificate=args.cert,
                attempts_max=1,
            ) as other:
                return clock.now(), read_samples(other.metrics())
    except EverbellError:
        pass
    return None


@dataclass(frozen=True, slots=True)
class _Load:
    """The numbers of a node between two looks. None: the number is not known."""

    in_per_s: float | None = None
    out_per_s: float | None = None
    retried_per_s: float | None = None
    in_flight: float | None = None
    late_p50_s: float | None = None
    late_p99_s: float | None = None
    lease_s: float | None = None
    replicas_held: float | None = None
    """The events of replicas that it holds; None if it holds none."""


def _show(
    view: ClusterView,
    before: Mapping[str, tuple[int, Samples]],
    now: Mapping[str, tuple[int, Samples] | None],
    as_json: bool,
) -> None:
    loads = [(member, _load(before.get(member.incarnation), now[member.incarnation])) for member in view.members]
    if as_json:
        print_json({"log_index": view.log_index, "nodes": [_document(*each) for each in loads]})
        return
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    paint = Paint()
    print_heading(view, paint)
    print()
    # Most clusters hold no events of replicas.
    holds = any(load.replicas_held is not None for _, load in loads)
    headings = (*_HEADINGS, "HELD") if holds else _HEADINGS
    Table(headings, paint).print([_row(*each)[: len(headings)] for each in loads])
    if view.replicas is not None:
        print_replicas(view.replicas, paint)
    print()
    print_transitions(view, paint, 8)
    sys.stdout.flush()


def _load(before: tuple[int, Samples] | None, now: tuple[int, Samples] | None) -> _Load:
    if now is None:
        return _Load()
    at, samples = now
    passed_s = None if before is None else max((at - before[0]) / 1_000, 0.001)

    def rate(name: str) -> float | None:
        if passed_s is None or before is None:
            return None
        return max(samples.value(name) - before[1].value(name), 0) / passed_s

    late = samples.since(before[1] if before is not None else None, "everbell_lateness_seconds")
    return _Load(
        rate("everbell_scheduled_total"),
        rate("everbell_delivered_total"),
        rate("everbell_retried_total"),
        samples.value("everbell_in_flight"),
        late.quantile(0.5),
        late.quantile(0.99),
        samples.value("everbell_cluster_lease_left_seconds"),
        samples.total("everbell_replicas_held_events"),
    )


def _document(member: MemberView, load: _Load) -> dict[str, Any]:
    """A node as numbers for programs. A lateness beyond the last bound of the histogram is null."""
    late = {name: None if value == inf else value for name, value in asdict(load).items()}
    partitions = None if member.gateway else member.partitions
    return {"node": member.name, "state": member.state, "partitions": partitions, **late}


def _row(member: MemberView, load: _Load) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    def lateness(value: float | None) -> str:
        return "-" if value is None else "more" if value == inf else f"≤{value * 1_000:g} ms"

    return (
        harmless(member.name, 32),
        member.state,
        "gateway" if member.gateway else str(member.partitions),
        number(load.in_per_s),
        number(load.out_per_s),
        number(load.retried_per_s),
        number(load.in_flight),
        lateness(load.late_p50_s),
        lateness(load.late_p99_s),
        "-" if load.lease_s is None else f"{load.lease_s:.1f} s",
        number(load.replicas_held),
    )
