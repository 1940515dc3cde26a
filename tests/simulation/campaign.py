"""Many seeds for some minutes: `make sim SEED=1000 MINUTES=10`, or `python -m tests.simulation.campaign`.

Each seed makes its own kind of world. A seed that breaks a promise is printed with everything that is needed to see it
again; it belongs into `REGRESSIONS` of test_world.py, together with the mend.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from everbell.engine import agenda, lanes, parceller
from everbell.testing import VirtualClock, run_virtual
from tests.simulation.world import Options, World


@dataclass(frozen=True)
class Run:
    """What came of one seed."""

    violations: list[str]
    trace_hash: str
    simulated_s: float
    crashes: int
    faults: int


def simulate(seed: int, options: Options) -> Run:
    """Run one seed in its world."""

    async def main(clock: VirtualClock) -> Run:
        world = World(seed, clock, options)
        start_at = clock.now()
        violations = await world.run()
        trace_hash = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()
        return Run(violations, trace_hash, (clock.now() - start_at) / 1_000, world.checker.restarts, world.faults)

    with _limits_of(options):
        return run_virtual(main)


def world_of(seed: int) -> Options:
    """The kind of world that a seed makes."""
    dice = random.Random(f"{seed}/world")
    return Options(
        events=dice.choice((60, 150, 300)),
        minutes=dice.choice((0.2, 1, 5)),
        keys=dice.choice((1, 3, 20)),
        keyed=dice.choice((0.3, 0.7, 1.0)),
        crashes=dice.choice((0, 1, 4)),
        cancels=dice.choice((0.05, 0.3)),
        moves=dice.choice((0.05, 0.3)),
        touches=dice.choice((0.0, 0.2)),
        repeats=dice.choice((0.0, 0.1)),
        failing=dice.choice((0.05, 0.3, 0.6)),
        store_full=dice.choice((0.0, 0.03, 0.2)),
        memory_bytes=dice.choice((6_000, 30_000, 1_000_000)),
        page_events=dice.choice((1, 7, 100)),
        partitions=dice.choice((1, 4)),
        line=dice.choice((1, 2, 3, 8)),
        outages=dice.choice((0, 0, 3, 10)),
        burst=dice.choice((1, 1, 10, 60)),
        slice=dice.choice((1, 3, 5_000)),
        grain_ms=dice.choice((1, 1, 1_000, 10_000)),
        # These in some of the worlds. Those of older regressions are not among them, and stay as they were.
        pauses=dice.choice((2, 10, 40)) if seed % 3 == 2 else 0,
        gateway=seed % 5 == 2,
    )


@contextmanager
def _limits_of(options: Options) -> Iterator[None]:
    """Limits that are constants of the engine, as a world has them."""
    usual = lanes.LINE_IN_MEMORY, agenda.SLICE, parceller.PARCEL_EVENTS_MIN
    lanes.LINE_IN_MEMORY, agenda.SLICE, parceller.PARCEL_EVENTS_MIN = options.line, options.slice, 1
    try:
        yield
    finally:
        lanes.LINE_IN_MEMORY, agenda.SLICE, parceller.PARCEL_EVENTS_MIN = usual


def simulate_seed(seed: int) -> Run:
    """Run a seed in the world that it makes."""
    return simulate(seed, world_of(seed))


def campaign(first_seed: int, minutes: float, seeds_max: int | None = None) -> int:
    """Run seeds until the time is over; returns how many broke a promise."""
    began_s = time.monotonic()
    seeds = crashes = faults = failed = 0
    simulated_s = 0.0
    for seed in count(first_seed):
        if time.monotonic() - began_s >= minutes * 60 or seeds == seeds_max:
            break
        seeds += 1
        try:
            run = simulate_seed(seed)
        except Exception:
            run = Run([traceback.format_exc()], "", 0.0, 0, 0)
        simulated_s += run.simulated_s
        crashes += run.crashes
        faults += run.faults
        if run.violations:
            failed += 1
            _say(f"seed {seed} FAILED in {world_of(seed)}", *run.violations[:5])
    took_min = max((time.monotonic() - began_s) / 60, 1e-9)
    _say(
        f"{seeds} seeds from {first_seed} in {took_min:.1f} min ({seeds / took_min:.0f} a minute): "
        f"{simulated_s / 3_600:.1f} simulated hours, {crashes} crashes, {faults} faults of the store, {failed} failed"
    )
    return failed


def _say(*lines: str) -> None:
    sys.stdout.write("\n  ".join(lines) + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate seeds until the time is over.")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=None, help="at most so many")
    arguments = parser.parse_args()
    return 1 if campaign(arguments.seed, arguments.minutes, arguments.seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
