"""The kind of world of replicas that a seed makes, and how many faults it has."""

from __future__ import annotations

import random
from dataclasses import dataclass

from everbell.core.replication import Ack
from everbell.replicas.store import ENDS_MAX


@dataclass(frozen=True)
class ReplicaOptions:
    """How rough a world is."""

    nodes: int = 4
    events: int = 60
    minutes: float = 2.0
    count: int = 3
    """The replicas of an event; some events have fewer."""
    ack: Ack = "majority"
    skew_ms: int = 2_000
    """How much longer each replica waits than the one before it."""
    cancels: float = 0.15
    changes: float = 0.15
    reads: float = 0.1
    repeats: float = 0.2
    failing: float = 0.1
    targets: int = 3
    in_flight: int = 8
    lead_s: float = 30.0
    """How far ahead most events are due."""
    cap_bytes: int = 1_000_000
    clock_off_ms: int = 200
    """The maximum error of wall clocks when nodes start."""
    drift: float = 0.01
    loss: float = 0.005
    twice: float = 0.02
    """How often a message arrives a second time, much later."""
    faults_a_minute: float = 6.0
    faults: tuple[str, ...] = (
        "crash",
        "fuse",
        "pause",
        "cut-node",
        "one-way",
        "split",
        "island",
        "storm",
        "restart",
        "grow",
        "log-away",
        "cut-log",
        "cut-receivers",
        "clock",
    )

    ends_max: int = ENDS_MAX
    """The number of ends of events that a node remembers."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing ever goes wrong between the nodes."""
        return not (self.faults_a_minute or self.loss or self.twice or self.failing)

    @property
    def clocks_agree(self) -> bool:
        """Whether no clock is so wrong that two replicas have their turns at the same time."""
        return "clock" not in self.faults and self.clock_off_ms * 4 <= self.skew_ms


def replicas_of_seed(seed: int) -> ReplicaOptions:
    """The kind of world that a seed makes."""
    dice = random.Random(f"{seed}/replicas")
    kinds = ReplicaOptions.faults
    return ReplicaOptions(
        nodes=dice.choice((2, 3, 3, 4, 4, 5, 6)),
        events=dice.choice((20, 50, 90)),
        minutes=dice.choice((1.5, 2.0, 3.0)),
        count=dice.choice((1, 2, 3, 3, 3, 3, 5)),
        ack=dice.choice(("majority", "majority", "all", "one")),
        skew_ms=dice.choice((500, 1_000, 2_000, 2_000)),
        cancels=dice.choice((0.05, 0.3)),
        changes=dice.choice((0.05, 0.3)),
        reads=dice.choice((0.05, 0.2)),
        repeats=dice.choice((0.0, 0.2, 0.5)),
        failing=dice.choice((0.02, 0.1, 0.4)),
        targets=dice.choice((1, 3)),
        in_flight=dice.choice((1, 4, 64)),
        lead_s=dice.choice((3.0, 30.0, 60.0)),
        cap_bytes=dice.choice((30_000, 1_000_000, 1_000_000)),
        clock_off_ms=dice.choice((0, 100, 100, 2_000)),
        drift=dice.choice((0.0, 0.01)),
        loss=dice.choice((0.0, 0.002, 0.02)),
        twice=dice.choice((0.0, 0.02, 0.1)),
        faults_a_minute=dice.choice((2.0, 5.0, 12.0)),
        faults=tuple(kind for kind in kinds if dice.random() < 0.5) or kinds,
        ends_max=dice.choice((ENDS_MAX, ENDS_MAX, ENDS_MAX, 15)),
    )
