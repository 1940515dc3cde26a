"""Many seeds for some minutes: `make sim SEED=1000 MINUTES=10`, or `python -m tests.simulation.campaign`.

Without SEED, `make sim` begins at a random seed, and prints it.

Each seed makes its own kind of world. A seed that breaks a promise is printed with all that is needed to repeat it; it
belongs into `REGRESSIONS` of test_world.py, together with the fix.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from everbell.engine import account, agenda, row_preparer, working_set
from everbell.engine import ordering as lanes
from everbell.testing import VirtualClock, run_virtual
from tests.simulation.interruptions import ACTIONS, Action
from tests.simulation.world import Options, World

CHANGES: tuple[Action, ...] = ("touch", "move", "cancel", "disconnect", "refuse")
PAUSES: tuple[Action, ...] = ("pause", "resume")


@dataclass(frozen=True)
class Run:
    """The result of one seed."""

    violations: list[str]
    trace_hash: str
    simulated_s: float
    crashes: int
    faults: int
    interrupted: Counter[tuple[str, Action]]


def simulate(seed: int, options: Options) -> Run:
    """Run one seed in its world."""

    async def main(clock: VirtualClock) -> Run:
        world = World(seed, clock, options)
        start_at = clock.now()
        violations = await world.run()
        trace_hash = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()
        simulated_s = (clock.now() - start_at) / 1_000
        return Run(violations, trace_hash, simulated_s, world.checker.restarts, world.faults, world.interrupted)

    with _limits_of(options):
        return run_virtual(main)


INTERRUPTED_FROM = 100_000_000
"""Seeds from here on make worlds in which users act during awaits, and nodes begin with a backlog. Lower seeds make the
same worlds as ever."""


CROWDED_FROM = 800_000_000
"""Seeds from here on make worlds in which tenants have more targets than flows fit into memory."""


def world_of(seed: int) -> Options:
    """The kind of world that a seed makes."""
    options = _calm_world_of(seed)
    if seed >= INTERRUPTED_FROM:
        options = _with_a_backlog(seed, _interrupted(seed, options))
    return _crowded(seed, options) if seed >= CROWDED_FROM else options


def _crowded(seed: int, options: Options) -> Options:
    """The targets of a tenant share its overflow: there are too many for flows and skips of their own."""
    dice = random.Random(f"{seed}/crowd")
    return replace(
        options,
        targets=dice.choice((8, 40, 200)),
        keyed=dice.choice((0.1, 0.5, 1.0)),
        burst=dice.choice((1, 10, 60, 100)),
        memory_bytes=dice.choice((8_000, 12_000, 30_000)),
        flows_free=dice.choice((0, 1, 3)),
        skipped_flows=dice.choice((0, 1, 3)),
    )


def _with_a_backlog(seed: int, options: Options) -> Options:
    """In one of four worlds, a node that has just taken its partition reads through a long backlog.

    Pauses leave events in the store and end while the node is down. Pages are small and slow, so keys go on with their
    lines and with overdue occurrences long before the loader has read all events that are due.
    """
    dice = random.Random(f"{seed}/backlog")
    if dice.random() >= 0.25:
        return options
    return replace(
        options,
        events=dice.choice((100, 200)),
        minutes=dice.choice((0.1, 0.3)),
        burst=dice.choice((1, 10, 60)),
        crashes=dice.choice((1, 1, 4)),
        down_s=dice.choice((10.0, 30.0)),
        page_s=dice.choice((0.02, 0.1)),
        page_events=1,
        partitions=1,
        pauses=dice.choice((10, 20, 40)),
        repeats=dice.choice((0.3, 0.8)),
        keys=dice.choice((2, 5, 20)),
        targets=1,
        kinds=dice.choice((("fine",), ("slow",))),
        failing=dice.choice((0.02, 0.1)),
        cancels=dice.choice((0.0, 0.05)),
        moves=dice.choice((0.0, 0.05)),
        memory_bytes=dice.choice((12_000, 1_000_000, 1_000_000)),
        store_full=0.0,
    )


def _interrupted(seed: int, options: Options) -> Options:
    """In most worlds, users and operators act during awaits."""
    dice = random.Random(f"{seed}/awaits")
    if dice.random() < 0.15:
        return options
    return replace(
        options,
        holds=dice.choice((0.05, 0.1, 0.3)),
        interruptions=dice.choice((ACTIONS, CHANGES, CHANGES, PAUSES)),
        events=dice.choice((60, 100)),
        minutes=dice.choice((0.1, 0.2)),
        burst=dice.choice((10, 60, 100)),
        # A restart brings back a stuck event and so hides the fault: most worlds have no restarts.
        crashes=dice.choice((0, 0, 0, options.crashes)),
        cancels=0.03,
        moves=0.03,
        touches=dice.choice((0.0, 0.3)),
        # Keys that wait for a failed head, and targets that are down, hide the order of the other events.
        kinds=dice.choice((("fine",), ("slow",), ("fine", "slow", "bad"))),
        failing=dice.choice((0.02, 0.1, options.failing)),
        outages=dice.choice((0, 0, options.outages)),
        pauses=dice.choice((0, 0, options.pauses)),
        store_full=dice.choice((0.0, 0.0, 0.03)),
        targets=dice.choice((1, 1, 4)),
        keys=dice.choice((1, 2, 5)),
        keyed=dice.choice((0.3, 1.0, 1.0)),
        memory_bytes=dice.choice((4_000, 5_000, 6_000, 12_000, 30_000, 1_000_000)),
        page_events=dice.choice((1, 1, 3, 7)),
        partitions=dice.choice((1, 1, 4)),
        leads_ms=dice.choice(((500, 2_000), (50, 500, 5_000), options.leads_ms)),
        grain_ms=dice.choice((1, 1, 1, 100, 1_000)),
    )


def _calm_world_of(seed: int) -> Options:
    """A world in which no action is aimed at an await."""
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
        # Only some worlds have pauses. The worlds of older regressions have none, and stay as they were.
        pauses=dice.choice((2, 10, 40)) if seed % 3 == 2 else 0,
        gateway=seed % 5 == 2,
    )


@contextmanager
def _limits_of(options: Options) -> Iterator[None]:
    """Set limits that are constants of the engine to the values of a world."""
    usual = lanes.LINE_IN_MEMORY, agenda.SLICE, row_preparer.PREPARED_EVENTS_MIN
    usual_flows = account.FLOWS_FREE, working_set.SKIPPED_FLOWS_MAX
    lanes.LINE_IN_MEMORY, agenda.SLICE, row_preparer.PREPARED_EVENTS_MIN = options.line, options.slice, 1
    account.FLOWS_FREE, working_set.SKIPPED_FLOWS_MAX = options.flows_free, options.skipped_flows
    try:
        yield
    finally:
        lanes.LINE_IN_MEMORY, agenda.SLICE, row_preparer.PREPARED_EVENTS_MIN = usual
        account.FLOWS_FREE, working_set.SKIPPED_FLOWS_MAX = usual_flows


def simulate_seed(seed: int) -> Run:
    """Run a seed in the world that it makes."""
    return simulate(seed, world_of(seed))


def campaign(first_seed: int, minutes: float, seeds_max: int | None = None) -> int:
    """Run seeds until the time is over; returns the number of seeds that broke a promise."""
    began_s = time.monotonic()
    seeds = crashes = faults = failed = 0
    interrupted: Counter[tuple[str, Action]] = Counter()
    simulated_s = 0.0
    for seed in count(first_seed):
        if time.monotonic() - began_s >= minutes * 60 or seeds == seeds_max:
            break
        seeds += 1
        try:
            run = simulate_seed(seed)
        except Exception:
            run = Run([traceback.format_exc()], "", 0.0, 0, 0, Counter())
        simulated_s += run.simulated_s
        crashes += run.crashes
        faults += run.faults
        interrupted += run.interrupted
        if run.violations:
            failed += 1
            _say(f"seed {seed} FAILED in {world_of(seed)}", *run.violations[:5])
    took_min = max((time.monotonic() - began_s) / 60, 1e-9)
    _say(
        f"{seeds} seeds from {first_seed} in {took_min:.1f} min ({seeds / took_min:.0f} a minute): "
        f"{simulated_s / 3_600:.1f} simulated hours, {crashes} crashes, {faults} faults of the store, {failed} failed; "
        f"during awaits: {_told(interrupted)}"
    )
    return failed


def _told(interrupted: Counter[tuple[str, Action]]) -> str:
    """The actions during awaits, by the awaited call, so that a campaign without any action is noticed."""
    calls = sorted({call for call, _ in interrupted})
    by_call = (
        {action: interrupted[call, action] for action in ACTIONS if (call, action) in interrupted} for call in calls
    )
    told = (" ".join(f"{action} {count}" for action, count in counts.items()) for counts in by_call)
    return ", ".join(f"{call} ({counts})" for call, counts in zip(calls, told, strict=True)) or "nothing"


def _say(*lines: str) -> None:
    sys.stdout.write("\n  ".join(lines) + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate seeds until the time is over.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=None, help="the maximum number of seeds")
    arguments = parser.parse_args()
    return 1 if campaign(arguments.seed, arguments.minutes, arguments.seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
