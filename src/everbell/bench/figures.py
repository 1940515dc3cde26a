"""Figures, and the arithmetic of comparing them: percentiles, ratios, goals."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

GoalVerdict = Literal["aim", "ok", "below", ""]


class Lateness(Struct, frozen=True):
    """How long after their due times events arrived, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    earliest_ms: float
    """Below zero if an event came early, which must never happen."""


class Goal(Struct, frozen=True):
    """The required and the desired value of a figure."""

    work: str
    unit: str
    at_least: float | None = None
    aim: float | None = None
    more_is_better: bool = True

    def verdict(self, value: float) -> GoalVerdict:
        """Compare a value with the goal; empty without a goal."""
        if self.aim is not None and self._reaches(value, self.aim):
            return "aim"
        if self.at_least is None:
            return ""
        return "ok" if self._reaches(value, self.at_least) else "below"

    def titled(self, **titles: str) -> Goal:
        """The goal with the placeholders of its title filled in."""
        return replace(self, work=self.work.format(**titles))

    def _reaches(self, value: float, wanted: float) -> bool:
        return value >= wanted if self.more_is_better else value <= wanted


class Baseline(Struct, frozen=True):
    """The same work done bare, in the same run."""

    what: str
    value: float


class Figure(Struct, frozen=True):
    """One measured value and its details."""

    goal: Goal
    value: float
    baselines: tuple[Baseline, ...] = ()
    """The ratio is to the first one."""
    cpu_us: float | None = None
    """CPU time of the server's processes per event."""
    rss_mb: float | None = None
    lateness: Lateness | None = None
    notes: tuple[str, ...] = ()
    rounds: tuple[float, ...] = ()
    """The values of all rounds in order, if there were several; `value` is the best."""

    @property
    def ratio(self) -> float | None:
        """The value relative to the bare work."""
        if not self.baselines or not self.baselines[0].value:
            return None
        return self.value / self.baselines[0].value


def best_of(figures: Sequence[Figure]) -> list[Figure]:
    """One figure for each goal: the best round, with the values of the others.

    Other work on the machine makes a figure worse and never better, so the best round says most about the program.
    The spread of the rounds shows how undisturbed the machine was.
    """
    rounds: dict[Goal, list[Figure]] = {}
    for figure in figures:
        rounds.setdefault(figure.goal, []).append(figure)
    return [_best(goal, made) for goal, made in rounds.items()]


def _best(goal: Goal, made: Sequence[Figure]) -> Figure:
    if len(made) == 1:
        return made[0]
    best = (max if goal.more_is_better else min)(made, key=lambda figure: figure.value)
    return replace(best, rounds=tuple(figure.value for figure in made))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed; `ordered` is sorted and not empty."""
    return ordered[min(max(ceil(share * len(ordered)) - 1, 0), len(ordered) - 1)]


def lateness_of(late_ms: Sequence[float]) -> Lateness:
    """Summarise latenesses; there is at least one."""
    ordered = sorted(late_ms)
    return Lateness(len(ordered), percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1], ordered[0])


def per_event_us(cpu_s: float, events: int) -> float:
    return cpu_s * 1e6 / max(events, 1)
