"""Many seeds of whole clusters for some minutes: `python -m tests.simulation.cluster_campaign`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from everbell.engine import lanes
from tests.simulation.cluster_options import ClusterOptions, cluster_of
from tests.simulation.cluster_world import ClusterWorld
from tests.simulation.processes import ProcessLoop

FAILED_MAX = 20
"""After so many seeds that failed, more of them say nothing new."""
_SAY_S = 600


@dataclass(frozen=True)
class ClusterRun:
    """What came of one seed."""

    violations: list[str]
    trace_hash: str = ""
    simulated_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def simulate_cluster(seed: int, options: ClusterOptions) -> ClusterRun:
    """Run one seed in its world."""
    loop = ProcessLoop()
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        with _limits_of(options):
            world = ClusterWorld(seed, loop, options)
            violations = loop.run_until_complete(world.run())
        violations += [f"broken: nobody saw {error!r}" for error in loop.bury()]
    finally:
        loop.bury()
        asyncio.set_event_loop(None)
        loop.close()
        if gc_was_enabled:
            gc.enable()
    trace = [*world.trace, *world._receivers.trace]
    trace_hash = hashlib.sha256("\n".join(trace).encode()).hexdigest()
    return ClusterRun(violations, trace_hash, loop.true_s, world.faults.count, world.summary(), trace)


@contextmanager
def _limits_of(options: ClusterOptions) -> Iterator[None]:
    usual = lanes.LINE_IN_MEMORY
    lanes.LINE_IN_MEMORY = options.line
    try:
        yield
    finally:
        lanes.LINE_IN_MEMORY = usual


def simulate_cluster_seed(seed: int) -> ClusterRun:
    """Run a seed in the world that it makes."""
    return simulate_cluster(seed, cluster_of(seed))


class Tally:
    """What came of all seeds so far."""

    def __init__(self) -> None:
        self.seeds = 0
        self.failed = 0
        self._simulated_s = 0.0
        self._faults: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def add(self, seed: int, run: ClusterRun) -> None:
        self.seeds += 1
        self._simulated_s += run.simulated_s
        self._faults += run.faults
        self._seen += run.seen
        if run.violations:
            self.failed += 1
            _say(f"seed {seed} FAILED in {cluster_of(seed)}", *run.violations[:5])

    def say(self, took_s: float) -> None:
        took_min = max(took_s / 60, 1e-9)
        hours = self._simulated_s / 3_600
        _say(
            f"{self.seeds} clusters in {took_min:.1f} min, {self.failed} failed: {hours:.1f} simulated hours, "
            f"{self._faults.total()} faults, {self._seen['takeovers']} takeovers; a minute: "
            f"{self.seeds / took_min:.0f} seeds, {hours / took_min:.1f} simulated hours, "
            f"{self._faults.total() / took_min:.0f} faults, {self._seen['takeovers'] / took_min:.0f} takeovers",
            f"faults: {_listed(self._faults)}",
            f"seen: {_listed(self._seen)}",
        )


def campaign(first_seed: int, minutes: float, seeds_max: int | None = None) -> int:
    """Run seeds until the time is over; returns how many broke a promise."""
    began_s = said_s = time.monotonic()
    tally = Tally()
    for seed in count(first_seed):
        now_s = time.monotonic()
        if now_s - began_s >= minutes * 60 or tally.seeds == seeds_max or tally.failed == FAILED_MAX:
            break
        if now_s - said_s >= _SAY_S:
            said_s = now_s
            tally.say(now_s - began_s)
        try:
            run = simulate_cluster_seed(seed)
        except Exception:
            run = ClusterRun([traceback.format_exc()])
        tally.add(seed, run)
    tally.say(time.monotonic() - began_s)
    return tally.failed


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {number}" for what, number in sorted(counter.items()))


def _say(*lines: str) -> None:
    sys.stdout.write("\n  ".join(lines) + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate clusters until the time is over.")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=None, help="at most so many")
    arguments = parser.parse_args()
    logging.disable()
    return 1 if campaign(arguments.seed, arguments.minutes, arguments.seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
