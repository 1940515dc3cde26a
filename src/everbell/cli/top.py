"""`everbell top`: the cluster, live."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from threading import Event

from everbell.cli.options import add_server_options, duration_s, open_client, positive
from everbell.cli.parser import OK, argument, command
from everbell.cli.printing import print_json
from everbell.cli.status import print_heading, print_transitions
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

Every node of the cluster is asked for its own numbers; one that does not answer is shown with dashes."""

_HEADINGS = ("NODE", "STATE", "PARTITIONS", "IN/s", "OUT/s", "RETRIED/s", "IN FLIGHT", "LATE p50", "LATE p99", "LEASE")
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


def _show(
    view: ClusterView,
    before: Mapping[str, tuple[int, Samples]],
    now: Mapping[str, tuple[int, Samples] | None],
    as_json: bool,
) -> None:
    rows = [_row(member, before.get(member.incarnation), now[member.incarnation]) for member in view.members]
    if as_json:
        names = [heading.lower().replace(" ", "_").replace("/s", "_per_s") for heading in _HEADINGS]
        print_json({"log_index": view.log_index, "nodes": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    paint = Paint()
    print_heading(view, paint)
    print()
    Table(_HEADINGS, paint).print(rows)
    print()
    print_transitions(view, paint, 8)
    sys.stdout.flush()


def _row(member: MemberView, before: tuple[int, Samples] | None, now: tuple[int, Samples] | None) -> tuple[str, ...]:
    owned = "gateway" if member.gateway else str(member.partitions)
    head = (harmless(member.name, 32), member.state, owned)
    if now is None:
        return (*head, *["-"] * (len(_HEADINGS) - len(head)))
    at, samples = now
    passed_s = None if before is None else max((at - before[0]) / 1_000, 0.001)

    def rate(name: str) -> str:
        if passed_s is None or before is None:
            return "-"
        return f"{max(samples.value(name) - before[1].value(name), 0) / passed_s:,.0f}"

    late = samples.since(before[1] if before is not None else None, "everbell_lateness_seconds")
    return (
        *head,
        rate("everbell_scheduled_total"),
        rate("everbell_delivered_total"),
        rate("everbell_retried_total"),
        f"{samples.value('everbell_in_flight'):,.0f}",
        late.quantile(0.5),
        late.quantile(0.99),
        f"{samples.value('everbell_cluster_lease_left_seconds'):.1f} s",
    )
