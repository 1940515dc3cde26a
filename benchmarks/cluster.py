"""`python -m benchmarks cluster`: three real nodes on a real PostgreSQL. One is killed, all are restarted in turn, and
one joins, while events are delivered all the time. Prints how late the deliveries were.

All events are scheduled ahead, evenly spread, with default settings. The owner of each event is known: an event without
a key stays with the node that accepted it, an event with a key goes to the owner of its partition. A receiver that
contains no code of Everbell records the arrivals. The benchmark measures real processes, so other load on the machine
shows in every figure.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from everbell.bench.figures import percentile
from everbell.core.ids import partition_of
from tests.acceptance.fleet import Fleet
from tests.acceptance.load import instant
from tests.acceptance.machine import now_ms
from tests.acceptance.receiver import Receiver
from tests.services.postgres import PostgresServer
from tests.services.process import ServiceMissing

NODES = ("n1", "n2", "n3")
EVENTS_PER_S = 300
KEYED = 0.5
KEYS = 600
KILLS = 3
LEAD_MS = 3_000
"""The time between scheduling and the first due time."""
BEFORE_MS = 4_000
AFTER_MS = 18_000
ROLLING_MS = 30_000

Row = tuple[str, str, str]
"""The name of the measurement, the figure, the goal."""


@dataclass(frozen=True)
class Due:
    """An event that was scheduled."""

    at: int
    owner: str
    key: str | None


class Arena:
    """The nodes, and all events that were scheduled on them."""

    def __init__(self, fleet: Fleet, receiver: Receiver) -> None:
        self.fleet = fleet
        self.receiver = receiver
        self.due: dict[str, Due] = {}

    def schedule(self, span_ms: int) -> int:
        """Schedule events over a span; returns when the first is due."""
        owners = [part["owner"] for part in self.fleet.view()["partitions"]]
        names = list(self.fleet.nodes)
        first_at = now_ms() + LEAD_MS
        batches: dict[str, list[dict[str, object]]] = {name: [] for name in names}
        for number in range(span_ms * EVENTS_PER_S // 1_000):
            at = first_at + number * 1_000 // EVENTS_PER_S
            name = f"{first_at}-{number}"
            key = f"k{number % KEYS}" if number % 100 < KEYED * 100 else None
            taker = names[number % len(names)]
            owner = taker if key is None else owners[partition_of("shop", key, len(owners))]
            self.due[name] = Due(at, owner, key)
            event: dict[str, object] = {"at": instant(at), "to": self.receiver.url("/ok"), "payload": {"name": name}}
            batches[taker].append(event if key is None else {**event, "key": key})
        for name, events in batches.items():
            for start in range(0, len(events), 1_000):
                self.fleet.nodes[name].schedule_many(events[start : start + 1_000])
        if now_ms() > first_at:
            print("(scheduling took longer than planned: the first events are late for that reason)")
        return first_at

    def arrivals(self) -> dict[str, list[int]]:
        """The times at which each event arrived."""
        found: dict[str, list[int]] = {}
        for received in list(self.receiver.received):
            found.setdefault(json.loads(received.body)["name"], []).append(received.began_at)
        return found

    def until_all_came(self) -> dict[str, list[int]]:
        deadline = time.monotonic() + 60
        while len(came := self.arrivals()) < len(self.due):
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(self.due) - len(came)} events did not arrive\n{self.fleet.log[-3_000:]}")
            time.sleep(0.1)
        return came


def lateness(late_ms: Iterable[float]) -> str:
    """Median, 99th percentile, and maximum."""
    ordered = sorted(late_ms)
    if not ordered:
        return "-"
    return f"{percentile(ordered, 0.5):,.0f} / {percentile(ordered, 0.99):,.0f} / {ordered[-1]:,.0f} ms"


def kill(arena: Arena) -> list[Row]:
    """Kill a node, several times, and measure when its events are delivered again."""
    unkeyed: list[tuple[int, int]] = []
    keyed: list[tuple[int, int]] = []
    before: list[int] = []
    others: list[int] = []
    for number in range(KILLS):
        victim = NODES[-1 - number % 2]
        arena.due.clear()
        arena.receiver.received.clear()
        first_at = arena.schedule(BEFORE_MS + AFTER_MS)
        _sleep_until(first_at + BEFORE_MS)
        killed_at = now_ms()
        arena.fleet.kill(victim)
        _sleep_until(first_at + BEFORE_MS + AFTER_MS)
        came = arena.until_all_came()
        unkeyed.append(_rang(arena, came, victim, killed_at, lambda due: due.key is None))
        overdue_at = killed_at + unkeyed[-1][0]
        keyed.append(_rang(arena, came, victim, killed_at, lambda due: due.key is not None, overdue_at))
        for name, due in arena.due.items():
            if due.at < killed_at - 500:
                before.append(came[name][0] - due.at)
            elif due.owner != victim and due.at < killed_at + 15_000:
                others.append(came[name][0] - due.at)
        arena.fleet.nodes[victim].start()
        arena.fleet.until_balanced(*NODES)
    return [
        ("killed: first delivery of its events", _seconds(first for first, _ in unkeyed), "5 s"),
        ("killed: all overdue events delivered", _seconds(last for _, last in unkeyed), ""),
        ("killed: first delivery of its overdue keys", _seconds(first for first, _ in keyed), "a deadline more"),
        ("killed: all overdue keys delivered", _seconds(last for _, last in keyed), ""),
        ("all events before the kill, p50 / p99 / max", lateness(before), ""),
        ("the others' events meanwhile, p50 / p99 / max", lateness(others), "as before"),
    ]


def _rang(
    arena: Arena,
    came: dict[str, list[int]],
    victim: str,
    killed_at: int,
    is_meant: Callable[[Due], bool],
    overdue_at: int | None = None,
) -> tuple[int, int]:
    """When the first and the last of the dead node's overdue events arrived, counted from the kill."""
    theirs = [(due.at, came[name][-1]) for name, due in arena.due.items() if due.owner == victim and is_meant(due)]
    if overdue_at is None:
        overdue_at = min(at for due_at, at in theirs if due_at > killed_at)
    late = [at - killed_at for due_at, at in theirs if killed_at < due_at <= overdue_at]
    return min(late), max(late)


def roll(arena: Arena) -> list[Row]:
    """Restart the nodes one after the other."""
    arena.due.clear()
    arena.receiver.received.clear()
    first_at = arena.schedule(ROLLING_MS)
    _sleep_until(first_at + 500)
    began_at = now_ms()
    for name in NODES:
        machine = arena.fleet.nodes.pop(name)
        if machine.stop():
            raise SystemExit(f"{name} did not stop cleanly\n{machine.log[-3_000:]}")
        arena.fleet.nodes[name] = machine
        machine.start()
        arena.fleet.until_balanced(*NODES)
    ended_at = now_ms()
    came = arena.until_all_came()
    meanwhile = {name: due for name, due in arena.due.items() if began_at <= due.at <= ended_at}
    late = [came[name][0] - due.at for name, due in meanwhile.items()]
    twice = sum(len(times) > 1 for times in came.values())
    return [
        (f"rolling restart in {(ended_at - began_at) / 1_000:.1f} s, p50 / p99 / max", lateness(late), "p99 1 s"),
        (f"of its {len(meanwhile):,} events, delivered twice", str(twice), "0"),
    ]


def join(arena: Arena) -> list[Row]:
    """Start a third node beside two others, under load."""
    arena.fleet.shrink("n3")
    arena.fleet.until_balanced("n1", "n2")
    arena.due.clear()
    arena.receiver.received.clear()
    _sleep_until(arena.schedule(10_000) + 1_000)
    began_at = now_ms()
    arena.fleet.add("n4")
    ready_at = now_ms()
    arena.fleet.until_balanced("n1", "n2", "n4")
    balanced_at = now_ms()
    came = arena.until_all_came()
    late = [came[name][0] - due.at for name, due in arena.due.items() if began_at <= due.at <= balanced_at + 1_000]
    return [
        ("joining: from starting the process to being ready", _seconds([ready_at - began_at]), ""),
        ("joining: to owning its share", _seconds([balanced_at - began_at]), "5 s"),
        ("events meanwhile, p50 / p99 / max", lateness(late), ""),
    ]


def _seconds(times_ms: Iterable[int]) -> str:
    return ", ".join(f"{time_ms / 1_000:.2f}" for time_ms in times_ms) + " s"


def _sleep_until(at: int) -> None:
    time.sleep(max(at - now_ms(), 0) / 1_000)


def main() -> None:
    """Measure, and print a table."""
    rows: list[Row] = []
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="everbell-bench-")))
        try:
            server = running.enter_context(PostgresServer())
        except ServiceMissing as missing:
            raise SystemExit(str(missing)) from missing
        receiver = running.enter_context(Receiver())
        fleet = running.enter_context(Fleet(folder, server.fresh_schema()))
        fleet.grow(*NODES)
        fleet.until_balanced(*NODES)
        arena = Arena(fleet, receiver)
        for part in (kill, roll, join):
            rows += part(arena)
    width = max(len(what) for what, _, _ in rows)
    print(f"{len(NODES)} nodes, {EVENTS_PER_S} events a second, {KEYED:.0%} of them with keys; {KILLS} kills")
    for what, figure, goal in rows:
        print(f"{what.ljust(width)}  {figure}{f'  (goal: {goal})' if goal else ''}")
