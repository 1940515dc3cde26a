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


def campaign(first_seed: int, minutes: float, seeds_max: int | None = None) -> int:
    """Run seeds until the time is over; returns how many broke a promise."""
    began_s = time.monotonic()
    seeds = failed = 0
    simulated_s = 0.0
    faults: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed in count(first_seed):
        if time.monotonic() - began_s >= minutes * 60 or seeds == seeds_max or failed == FAILED_MAX:
            break
        seeds += 1
        try:
            run = simulate_cluster_seed(seed)
        except Exception:
            run = ClusterRun([traceback.format_exc()])
        simulated_s += run.simulated_s
        faults += run.faults
        seen += run.seen
        if run.violations:
            failed += 1
            _say(f"seed {seed} FAILED in {cluster_of(seed)}", *run.violations[:5])
    took_min = max((time.monotonic() - began_s) / 60, 1e-9)
    _say(
        f"{seeds} clusters from {first_seed} in {took_min:.1f} min, {failed} failed; a minute: "
        f"{seeds / took_min:.0f} seeds, {simulated_s / 3_600 / took_min:.1f} simulated hours, "
        f"{faults.total() / took_min:.0f} faults, {seen['takeovers'] / took_min:.0f} takeovers",
        f"faults: {_listed(faults)}",
        f"seen: {_listed(seen)}",
    )
    return failed


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
