"""The targets of a tenant, as users see them, and how the views of several nodes become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from everbell.core.pause import PauseInForce
from everbell.core.queue_view import RecentAttempts, longest, merged_attempts


class BreakerView(Struct, frozen=True, omit_defaults=True):
    """The circuit breaker of a target."""

    state: Literal["closed", "open", "probing"]
    failures: int
    """The number of failures in a row."""
    until: str | None = None
    """While it is open: the time of the next probe."""


class RateView(Struct, frozen=True, omit_defaults=True):
    """The rate limit of a target, on each node."""

    per_s: float
    until: str | None = None
    """While the rate is used up: the time of the next attempt."""


class ErrorView(Struct, frozen=True, omit_defaults=True):
    """The latest failed attempt at a target."""

    at: str
    event: str
    reason: str | None = None
    code: int | None = None


class TargetView(Struct, frozen=True, omit_defaults=True):
    """A target as it is now: a host, a Kafka cluster, a queue or a handler."""

    target: str
    waiting: int
    """The number of due events in memory that have not started."""
    in_flight: int
    last_minute: RecentAttempts
    more: bool = False
    """Whether further due events are in the store only."""
    oldest_wait_ms: int | None = None
    """How long the oldest waiting event has been due."""
    cap: int | None = None
    """The number of attempts that may be in flight, on each node. None: workers decide."""
    breaker: BreakerView | None = None
    rate: RateView | None = None
    paused: PauseInForce | None = None
    last_error: ErrorView | None = None


class TargetsView(Struct, frozen=True, omit_defaults=True):
    """The targets of a tenant, by name."""

    targets: tuple[TargetView, ...]
    unheard: tuple[str, ...] = ()
    """The nodes that did not answer, so that figures may be too low."""


def merged_targets(views: Sequence[TargetsView], unheard: Sequence[str]) -> TargetsView:
    """The targets of all nodes as one list."""
    targets: dict[str, TargetView] = {}
    for view in views:
        for target in view.targets:
            known = targets.get(target.target)
            targets[target.target] = target if known is None else _merged(known, target)
    return TargetsView(tuple(targets[name] for name in sorted(targets)), tuple(unheard))


def _merged(one: TargetView, other: TargetView) -> TargetView:
    errors = [error for error in (one.last_error, other.last_error) if error is not None]
    return TargetView(
        one.target,
        one.waiting + other.waiting,
        one.in_flight + other.in_flight,
        merged_attempts(one.last_minute, other.last_minute),
        one.more or other.more,
        longest(one.oldest_wait_ms, other.oldest_wait_ms),
        one.cap if other.cap is None else other.cap,
        _worst(one.breaker, other.breaker),
        max(filter(None, (one.rate, other.rate)), key=lambda rate: rate.until or "", default=None),
        one.paused or other.paused,
        max(errors, key=lambda error: error.at, default=None),
    )


def _worst(one: BreakerView | None, other: BreakerView | None) -> BreakerView | None:
    """Each node has a breaker of its own. The one that lets the least through is shown."""
    order = ("closed", "probing", "open")
    return max(filter(None, (one, other)), key=lambda breaker: order.index(breaker.state), default=None)
