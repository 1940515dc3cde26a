"""The recent past as users see it: what happened in each span of time, and how things stand now."""

from __future__ import annotations

from msgspec import Struct


class StandingView(Struct, frozen=True):
    """How things stand at one moment."""

    waiting: int
    """The number of due events in memory that have not started."""
    in_flight: int
    oldest_wait_ms: int
    """How long the oldest of them has been due. Paused targets do not count."""
    pending: int
    """The number of stored events that are neither finished nor dead; some seconds old."""
    dead_events: int


class SampleView(StandingView, frozen=True, omit_defaults=True, kw_only=True):
    """One span of time: what happened in it, and how things stood at its end."""

    at: str
    """Its beginning."""
    scheduled: int
    started: int
    """The number of first attempts."""
    delivered: int
    failed: int
    """The number of failed attempts."""
    retried: int
    dead: int
    expired: int
    cancelled: int
    late_p50_ms: int | None = None
    """About how late first attempts started, if there were any."""
    late_p99_ms: int | None = None


class HistoryView(Struct, frozen=True, omit_defaults=True):
    """The last spans of time, the oldest first."""

    step_ms: int
    samples: tuple[SampleView, ...]
    now: StandingView
    unheard: tuple[str, ...] = ()
    """The nodes that did not answer, so that figures may be too low."""
