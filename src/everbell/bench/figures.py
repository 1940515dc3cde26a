"""Figures, and the arithmetic of comparing them: percentiles, ratios, goals."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Lateness(Struct, frozen=True):
    """How long after their due times events arrived, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    earliest_ms: float
    """Below zero if one came early, which must never be."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed; `ordered` is sorted and not empty."""
    place = -int(-share * len(ordered) // 1) - 1  # Rounded up, then counted from zero.
    return ordered[min(max(place, 0), len(ordered) - 1)]


def lateness_of(late_ms: Sequence[float]) -> Lateness:
    """Sum up single latenesses; there is at least one."""
    ordered = sorted(late_ms)
    return Lateness(len(ordered), percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1], ordered[0])
