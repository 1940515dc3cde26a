"""All measurements by name, and the report of a run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct

from everbell.bench.abuse import abuse
from everbell.bench.cassandra import cassandra
from everbell.bench.delivery import pull, push
from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Figure
from everbell.bench.guarded import guarded
from everbell.bench.herd import herd
from everbell.bench.ingest import ingest, single
from everbell.bench.kafka import kafka
from everbell.bench.late import late
from everbell.bench.million import million
from everbell.bench.outbox import outbox
from everbell.bench.pending import pending
from everbell.bench.postgres import postgres
from everbell.bench.recurring import preview, recurring
from everbell.bench.replicas import replicas
from everbell.bench.rules import rules
from everbell.bench.scene import Scene
from everbell.bench.shards import shards
from everbell.bench.whole import whole

Measurement = Callable[[Scene], list[Figure]]

MEASUREMENTS: dict[str, Measurement] = {
    "ingest": ingest,
    "whole": whole,
    "single": single,
    "pull": pull,
    "push": push,
    "late": late,
    "pending": pending,
    "herd": herd,
    "million": million,
    "preview": preview,
    "recurring": recurring,
    "rules": rules,
    "guarded": guarded,
    "abuse": abuse,
    "postgres": postgres,
    "outbox": outbox,
    "kafka": kafka,
    "replicas": replicas,
    "cassandra": cassandra,
    "shards": shards,
}
"""In the order in which they are made."""

ONCE = frozenset({"pending", "herd", "million", "recurring", "guarded", "abuse", "replicas", "shards"})
"""Measurements that take minutes or have their own rounds; they are made once."""


def names_of(only: Sequence[str] | None, scene: Scene) -> list[str]:
    """The requested measurements, or all that are possible here."""
    places = {
        "postgres": scene.postgres,
        "outbox": scene.postgres,
        "replicas": scene.postgres,
        "kafka": scene.kafka,
        "cassandra": scene.cassandra,
        "shards": scene.cassandra,
    }
    missing = {name for name, place in places.items() if not place}
    return list(only or (name for name in MEASUREMENTS if name not in missing))


class Machine(Struct, frozen=True):
    """The machine of the figures. Its load is included, because other work makes figures worse."""

    processor: str
    cores: int
    system: str
    python: str
    everbell: str
    rocksdict: str
    load_average: float


class Report(Struct, frozen=True):
    """Figures and their machine."""

    machine: Machine
    figures: tuple[Figure, ...]
    failures: tuple[str, ...] = ()
    """Failed measurements with the reason."""


def describe_machine() -> Machine:
    return Machine(
        _processor(),
        len(os.sched_getaffinity(0)),
        platform.platform(),
        platform.python_version(),
        version("everbell"),
        version("rocksdict"),
        os.getloadavg()[0],
    )


def measure(names: Sequence[str], scene: Scene, rounds: int) -> Iterator[Figure | str]:
    """Make the measurements one after the other; yields each figure, or the reason of a failure, as soon as it is
    known.

    A round includes all measurements, so that a slow phase of the machine affects one round of each.
    """
    for turn in range(rounds):
        for name in names:
            if turn and name in ONCE:
                continue
            try:
                yield from MEASUREMENTS[name](scene)
            except BenchFailed as failed:
                yield f"{name}: {failed}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
