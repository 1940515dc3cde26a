"""`everbell status`, `drain`, `undrain` and `cluster forget`: a node's health, and the cluster as it sees it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import msgspec

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import FAILED, OK, argument, command
from everbell.cli.printing import print_json
from everbell.cli.terminal import Paint, Table, harmless
from everbell.core.cluster.view import ClusterView, MemberView, ReplicasView
from everbell.core.health import Health

_STATUS_NOTES = """\
examples:
  everbell status                                health, members, partitions, leases, the last transitions
  everbell status --partitions                   and every partition, with its owner, epoch and backups
  everbell status --json | jq .members
  everbell top                                   the same, live
  everbell status > /dev/null && echo fine       the exit code is 1 when the node is not ready"""

_DRAIN_NOTES = """\
examples:
  everbell drain n3                              move all partitions away from node n3, one at a time
  everbell status                                watch it go
  everbell undrain n3                            let it own partitions again

A node that is stopped with SIGTERM drains by itself. A drain ends with the process: after a restart the node takes its
share again."""

_FORGET_NOTES = """\
The nodes that stand in for it keep its partitions for good. Without this command, the cluster forgets a dead node
when the last event that it left behind has ended, or after `--forget-after`.

examples:
  everbell cluster forget n3
"""

_NODE = argument("node", metavar="NODE", help="the name of the node")

MEMBER_HEADINGS = ("NODE", "STATE", "PARTITIONS", "ZONE", "CAPACITY", "WATCHES", "BACKUP", "URL")


@command(
    "status",
    "show health and cluster",
    "Show the health of a node, and the cluster as it sees it.",
    _STATUS_NOTES,
    argument("--partitions", action="store_true", help="show every partition"),
    add_server_options,
)
def _status(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        health = client.health()
        if not args.json:
            # First, because an unhealthy node may not answer the next request.
            print_health(health, Paint())
        view = client.cluster()
    if args.json:
        print_json({**msgspec.to_builtins(view), "health": health})
    else:
        print()
        print_cluster(view, Paint(), partitions=args.partitions)
    return OK if health.state == "ready" else FAILED


@command(
    "drain",
    "move all partitions away from a node",
    "Move partitions away.",
    _DRAIN_NOTES,
    _NODE,
    add_server_options,
)
def _drain(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        return _show(client.drain(args.node), args)


@command(
    "undrain",
    "let a node own partitions again",
    "Undo a drain.",
    _DRAIN_NOTES,
    _NODE,
    add_server_options,
)
def _undrain(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        return _show(client.undrain(args.node), args)


@command(
    "cluster",
    "declare that a dead node does not come back",
    "Forget a dead node.",
    _FORGET_NOTES,
    argument("action", choices=("forget",), help="what to do"),
    _NODE,
    add_server_options,
)
def _forget(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        return _show(client.forget(args.node), args)


def _show(view: ClusterView, args: argparse.Namespace) -> int:
    if args.json:
        print_json(view)
    else:
        print_members(view, Paint())
    return OK


def print_cluster(view: ClusterView, paint: Paint, *, partitions: bool = False) -> None:
    """The whole state of the cluster, for people."""
    print_heading(view, paint)
    print_members(view, paint)
    if view.replicas is not None:
        print_replicas(view.replicas, paint)
    if view.pauses:
        print(f"{view.pauses} paused: tenants, keys, targets or queues; see everbell tenants list, everbell pauses")
    for stand_in in view.stand_ins:
        print(f"{harmless(stand_in.by)} stands in for {harmless(stand_in.dead)}: {len(stand_in.partitions)} partitions")
    if partitions:
        print()
        _print_partitions(view, paint)
    if view.transitions:
        print()
        print_transitions(view, paint, 10)


def print_health(health: Health, paint: Paint) -> None:
    """The health of the asked node, part by part."""
    colour = "green" if health.state == "ready" else "red"
    print(f"{harmless(health.node or 'the server')} is {paint(health.state, colour)}{_because(health.reason)}")
    for name, state, figures, reason in _parts(health):
        word = paint(state, "dim" if state == "ok" else "red")
        print(f"  {name:<8} {word}{figures}{_because(reason)}")


def _parts(health: Health) -> Iterator[tuple[str, str, str, str | None]]:
    """The name of each part, its state, its figures and the reason if it is not ok."""
    if (store := health.store) is not None:
        since = "" if store.since is None else f" since {harmless(store.since)}"
        yield "store", store.state, since, store.reason
    if (disk := health.disk) is not None:
        yield "disk", _word(disk.ok), f", {disk.free_bytes / 1e9:,.1f} GB free", disk.reason
    if (cluster := health.cluster) is not None:
        figures = f", {cluster.partitions} partitions, lease {cluster.lease_left_ms} ms left"
        yield "cluster", _word(cluster.ok), figures, cluster.reason
    if (backlog := health.backlog) is not None:
        figures = f", oldest overdue {backlog.overdue_ms / 1_000:,.1f} s, {backlog.in_flight:,} in flight"
        yield "backlog", _word(backlog.ok), figures, backlog.reason
    if (queues := health.queues) is not None:
        yield "queues", _word(queues.ok), "", queues.reason
    if (kafka := health.kafka) is not None:
        yield "kafka", _word(kafka.ok), f", {kafka.lag_records:,} records behind", kafka.reason


def _word(ok: bool) -> str:
    return "ok" if ok else "not ok"


def _because(reason: str | None) -> str:
    return "" if reason is None else f": {harmless(reason)}"


def print_heading(view: ClusterView, paint: Paint) -> None:
    """Two lines about the cluster, and the node that was asked."""
    states = ", ".join(f"{count} {state}" for state, count in view.partition_states.items())
    print(f"{paint('cluster', 'dim')} {view.cluster}   {paint('partitions', 'dim')} {states}")
    print(
        f"{paint('seen by', 'dim')} {harmless(view.node)}   {paint('log', 'dim')} at {view.log_index},"
        f" seen {view.log_lag_ms} ms ago   {paint('lease', 'dim')} {view.lease_left_ms} ms left"
    )


def print_members(view: ClusterView, paint: Paint) -> None:
    Table(MEMBER_HEADINGS, paint).print([member_row(member) for member in view.members])


def print_replicas(replicas: ReplicasView, paint: Paint) -> None:
    """The events of replicas that the asked node holds, for people."""
    held, used = f"{replicas.held:,} held", f"{replicas.held_bytes / 1e6:,.1f} of {replicas.cap_bytes / 1e6:,.1f} MB"
    figures = f"{held}{_by_rank(replicas.held_by_rank)}, {used}, {replicas.tombstones:,} tombstones"
    print(f"{paint('replicas', 'dim')} {figures}")
    print(
        f"  attempts {sum(replicas.started_by_rank.values()):,}{_by_rank(replicas.started_by_rank)},"
        f" {replicas.duplicates:,} duplicates; {_resync(replicas)}"
    )
    if replicas.forgotten_early:
        print(paint(f"  {replicas.forgotten_early:,} ends were forgotten early: their events may come back", "red"))


def _by_rank(counts: Mapping[int, int]) -> str:
    """The counts of the ranks: how many replicas come before this node."""
    return f" (by rank: {', '.join(f'{rank}: {count:,}' for rank, count in counts.items())})" if counts else ""


def _resync(replicas: ReplicasView) -> str:
    if replicas.resync_left or replicas.resync_ms:
        return f"resync for {replicas.resync_ms / 1_000:,.1f} s, {replicas.resync_left:,} left"
    if replicas.behind:
        return f"behind: {harmless(', '.join(replicas.behind), 60)}"
    return "in step with the other nodes" if replicas.settled and replicas.refilled else "a resync is due"


def member_row(member: MemberView) -> tuple[str, ...]:
    """A node as a row under `MEMBER_HEADINGS`."""
    owned = "gateway" if member.gateway else str(member.partitions)
    return (
        harmless(member.name, 32),
        member.state,
        f"{owned} ({member.moving} moving)" if member.moving else owned,
        harmless(member.zone, 16),
        str(member.capacity),
        harmless(member.watches or "", 32),
        harmless(member.backup or "", 32),
        harmless(member.addresses[1], 48) if len(member.addresses) > 1 else "",
    )


def _print_partitions(view: ClusterView, paint: Paint) -> None:
    rows = [
        (
            str(part.partition),
            part.state,
            harmless(part.owner or "", 32),
            str(part.epoch),
            harmless(part.to or "", 32),
            "" if part.clean else "no",
            harmless(", ".join(part.backups), 48),
        )
        for part in view.partitions
    ]
    Table(("PARTITION", "STATE", "OWNER", "EPOCH", "TO", "CLEAN", "BACKUPS"), paint).print(rows)


def print_transitions(view: ClusterView, paint: Paint, count: int) -> None:
    rows = [
        (str(entry.index), entry.at or "", entry.kind, harmless(entry.what, 40), harmless(entry.reason, 60))
        for entry in view.transitions[-count:]
    ]
    Table(("INDEX", "AT", "WHAT", "WHO", "WHY"), paint).print(rows)
