"""A campaign: many seeds of one kind of world for some minutes, with the results added up.

A campaign that is ended early (SIGTERM, Ctrl-C) prints its results so far. With `--totals FILE` they are kept, and
`--sum FILE …` adds up the results of several campaigns. `--without` takes out each safeguard in turn and counts the
seeds in which the checker notices: in that number of seeds only this safeguard kept the promise.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import logging
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.simulation.processes import ProcessLoop

FAILED_MAX = 20
"""After this number of failed seeds, further failures show nothing new."""
_SAY_S = 600
_ANSWERS_S = 30.0

Safeguard = Callable[[pytest.MonkeyPatch], None]
"""Takes one safeguard out."""


@dataclass(frozen=True)
class StoryRun:
    """The result of one seed."""

    violations: list[str]
    trace_hash: str = ""
    simulated_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


class Story(Protocol):
    """A world of processes, and what happens in it."""

    async def run(self) -> list[str]:
        """The whole story; returns the violations."""

    def told(self) -> tuple[Counter[str], Counter[str], list[str]]:
        """The faults by kind, what was seen, and the trace."""


def tell(make: Callable[[ProcessLoop], Story]) -> StoryRun:
    """Run a story from its beginning to its end."""
    loop = ProcessLoop()
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        story = make(loop)
        violations = loop.run_until_complete(story.run())
        if loop.unseen():
            # A node that asked several others at once gets their errors only when the last one has answered or
            # timed out.
            loop.run_until_complete(asyncio.sleep(_ANSWERS_S))
        violations += [f"broken: no caller saw {error!r}" for error in loop.unseen()]
    finally:
        loop.bury()
        asyncio.set_event_loop(None)
        loop.close()
        if gc_was_enabled:
            gc.enable()
    faults, seen, trace = story.told()
    trace_hash = hashlib.sha256("\n".join(trace).encode()).hexdigest()
    return StoryRun(violations, trace_hash, loop.true_s, faults, seen, trace)


def breaks(run: StoryRun, rules: tuple[str, ...]) -> bool:
    """Whether the checker found that one of these rules was broken."""
    return any(violation.startswith(tuple(f"{rule}:" for rule in rules)) for violation in run.violations)


@dataclass(frozen=True)
class Plan:
    """The kind of worlds of a campaign."""

    what: str
    simulate: Callable[[int], StoryRun]
    """Runs the seed in the world that it makes."""
    options_of: Callable[[int], object]
    """The kind of world that a seed makes, for people."""
    notable: str
    """The name of a count of which the summary gives the rate."""
    safeguards: Sequence[Safeguard]


class Tally:
    """The results of all seeds so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.seeds = 0
        self.failed = 0
        self._took_s = 0.0
        self._simulated_s = 0.0
        self._faults: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def add(self, seed: int, run: StoryRun, took_s: float) -> None:
        self.seeds += 1
        self._took_s += took_s
        self._simulated_s += run.simulated_s
        self._faults += run.faults
        self._seen += run.seen
        if run.violations:
            self.failed += 1
            _say(f"seed {seed} FAILED in {self._plan.options_of(seed)}", *run.violations[:5])

    def include(self, kept: dict[str, Any]) -> None:
        """Add the kept results of another campaign."""
        self.seeds += kept["seeds"]
        self.failed += kept["failed"]
        self._took_s += kept["took_s"]
        self._simulated_s += kept["simulated_s"]
        self._faults += Counter(kept["faults"])
        self._seen += Counter(kept["seen"])

    def kept(self) -> dict[str, Any]:
        """The results in the form that `include` takes."""
        return {
            "seeds": self.seeds,
            "failed": self.failed,
            "took_s": self._took_s,
            "simulated_s": self._simulated_s,
            "faults": self._faults,
            "seen": self._seen,
        }

    def say(self) -> None:
        took_min = max(self._took_s / 60, 1e-9)
        hours = self._simulated_s / 3_600
        notable = self._seen[self._plan.notable]
        _say(
            f"{self.seeds} {self._plan.what} in {took_min:.1f} min, {self.failed} failed: {hours:.1f} simulated hours, "
            f"{self._faults.total()} faults, {notable} {self._plan.notable}; a minute: "
            f"{self.seeds / took_min:.0f} seeds, {hours / took_min:.1f} simulated hours, "
            f"{self._faults.total() / took_min:.0f} faults, {notable / took_min:.0f} {self._plan.notable}",
            f"faults: {_listed(self._faults)}",
            f"seen: {_listed(self._seen)}",
        )


def campaign(
    plan: Plan, first_seed: int, minutes: float, seeds_max: int | None = None, totals: Path | None = None
) -> int:
    """Run seeds until the time is over; returns the number of seeds that broke a promise."""
    began_s = said_s = time.monotonic()
    tally = Tally(plan)
    try:
        for seed in count(first_seed):
            now_s = time.monotonic()
            if now_s - began_s >= minutes * 60 or tally.seeds == seeds_max or tally.failed == FAILED_MAX:
                break
            if now_s - said_s >= _SAY_S:
                said_s = now_s
                _keep(tally, totals)
            tally.add(seed, _run(plan, seed), time.monotonic() - now_s)
    except KeyboardInterrupt:
        _say(f"ended early, before seed {first_seed + tally.seeds}")
    _keep(tally, totals)
    return tally.failed


def _run(plan: Plan, seed: int) -> StoryRun:
    try:
        return plan.simulate(seed)
    except Exception:
        return StoryRun([traceback.format_exc()])


def _keep(tally: Tally, totals: Path | None) -> None:
    tally.say()
    if totals is not None:
        totals.write_text(json.dumps(tally.kept()))


def campaign_without(plan: Plan, first_seed: int, seeds: int) -> None:
    """Print for each safeguard in how many seeds the checker notices that it is missing."""
    for safeguard in plan.safeguards:
        missed = 0
        rules: Counter[str] = Counter()
        for seed in range(first_seed, first_seed + seeds):
            with pytest.MonkeyPatch.context() as patch:
                safeguard(patch)
                found = _run(plan, seed).violations
            missed += bool(found)
            rules.update({violation.partition(":")[0] for violation in found})
        _say(f"{safeguard.__name__}: noticed in {missed} of {seeds} seeds ({_listed(rules)})")


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {number}" for what, number in sorted(counter.items()))


def _say(*lines: str) -> None:
    sys.stdout.write("\n  ".join(lines) + "\n")
    sys.stdout.flush()


def main(plan: Plan) -> int:
    parser = argparse.ArgumentParser(description=f"Simulate {plan.what} until the time is over.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=None, help="the maximum number of seeds")
    parser.add_argument("--totals", type=Path, default=None, help="a file that keeps the results")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="only add up kept results")
    parser.add_argument("--without", action="store_true", help="take out each safeguard, for --seeds each")
    arguments = parser.parse_args()
    logging.disable()
    if arguments.sum:
        tally = Tally(plan)
        for file in arguments.sum:
            tally.include(json.loads(file.read_text()))
        tally.say()
        return 0
    if arguments.without:
        campaign_without(plan, arguments.seed, arguments.seeds or 20)
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):  # A shell lets background jobs ignore SIGINT.
        signal.signal(number, signal.default_int_handler)
    return 1 if campaign(plan, arguments.seed, arguments.minutes, arguments.seeds, arguments.totals) else 0
