"""The kind of cluster that a seed makes, and how many faults it has."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from everbell.engine.partition import CLOCKS_APART_MS

LINK_FAULTS = "lossy-link", "slow-link", "bridge", "flapping-link"
LINKS_FROM_SEED = 3_100_000
"""Older seeds have no bad links, so that their stories stay as they were."""


@dataclass(frozen=True)
class ClusterOptions:
    """How rough a world is."""

    nodes: int = 3
    events: int = 150
    minutes: float = 2.0
    partitions: int = 8
    keys: int = 6
    targets: int = 4
    keyed: float = 0.6
    cancels: float = 0.1
    moves: float = 0.1
    races: float = 0.1
    repeats: float = 0.05
    queued: float = 0.1
    """The share of events without a key that workers pull."""
    workers: int = 2
    failing: float = 0.2
    burst: int = 1
    store_full: float = 0.01
    store_partial: float = 0.0
    """How often an apply refuses some of the users' changes, as a write at the levels of several tenants may."""
    grain_ms: int = 1
    """Due times are multiples of this, so that events form herds, also within one key."""
    memory_bytes: int = 100_000
    page_events: int = 7
    line: int = 3
    skew_ms: int = 2_000
    """The maximum error of wall clocks."""
    drift: float = 0.02
    """The maximum deviation of the speed of clocks."""
    loss: float = 0.003
    lease_ms: int = 2_500
    handover_ms: int = 5_000
    snapshot_entries: int = 20
    faults_a_minute: float = 10.0
    faults: tuple[str, ...] = (
        "crash",
        "fuse",
        "pause",
        "cut-log",
        "cut-store",
        "cut-node",
        "island",
        "one-way",
        "storm",
        "restart",
        "log-away",
        "store-away",
        "clock",
        "operator",
    )
    core: float = 0.6
    """The share of nodes that is healed first."""


def cluster_of(seed: int) -> ClusterOptions:
    """The kind of world that a seed makes."""
    dice = random.Random(f"{seed}/cluster")
    kinds = ClusterOptions.faults
    options = ClusterOptions(
        nodes=dice.choice((1, 2, 3, 3, 3, 4, 5, 7)),
        events=dice.choice((50, 120, 250)),
        minutes=dice.choice((1.0, 2.0, 4.0)),
        partitions=dice.choice((1, 4, 8, 16)),
        keys=dice.choice((1, 3, 20)),
        keyed=dice.choice((0.3, 0.7, 1.0)),
        cancels=dice.choice((0.05, 0.3)),
        moves=dice.choice((0.05, 0.3)),
        races=dice.choice((0.0, 0.2)),
        repeats=dice.choice((0.0, 0.1)),
        queued=dice.choice((0.0, 0.4)),
        failing=dice.choice((0.05, 0.2, 0.5)),
        burst=dice.choice((1, 1, 10)),
        store_full=dice.choice((0.0, 0.02)),
        memory_bytes=dice.choice((10_000, 1_000_000)),
        page_events=dice.choice((1, 7, 100)),
        line=dice.choice((1, 3, 8)),
        skew_ms=dice.choice((0, 500, 2_000)),
        drift=dice.choice((0.0, 0.02, 0.04)),
        loss=dice.choice((0.001, 0.02)),
        handover_ms=dice.choice((300, 5_000)),
        snapshot_entries=dice.choice((3, 20, 200)),
        faults_a_minute=dice.choice((4.0, 12.0, 30.0)),
        faults=tuple(kind for kind in kinds if dice.random() < 0.6) or kinds,
        core=dice.choice((0.4, 0.6, 1.0)),
    )
    # Drawn last, so that all other options of older seeds stay as they were.
    options = replace(
        options,
        store_partial=dice.choice((0.0, 0.0, 0.05)),
        grain_ms=dice.choice((1, 1, 1_000, 5_000)),
        faults=(*options.faults, "hold") if dice.random() < 0.3 else options.faults,
        # Clocks that are up to 15 s apart are safe: only the due times suffer.
        skew_ms=CLOCKS_APART_MS // 2 if dice.random() < 0.15 else options.skew_ms,
    )
    links = tuple(kind for kind in LINK_FAULTS if dice.random() < 0.4) if seed >= LINKS_FROM_SEED else ()
    return replace(options, faults=(*options.faults, *links))
