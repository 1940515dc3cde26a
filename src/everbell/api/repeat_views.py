"""Recurrence in answers: how an event comes again, how its occurrences have fared, when they will be."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.api.timestamps import Instant, instant
from everbell.core.event import Course, Misfire, Overlap, Repeat
from everbell.core.recurrence import NOTHING_YET
from everbell.core.time import format_duration
from everbell.core.timetable import Gap, Repeated


class RepeatView(Struct, frozen=True, omit_defaults=True, gc=False):
    """How the event comes again, by an interval or by cron. Defaults are left out."""

    every: str | None = None
    count: int | None = None
    until: Instant | None = None
    cron: str | None = None
    tz: str | None = None
    gap: Gap = "skip"
    repeated: Repeated | None = None
    jitter: str | None = None
    misfire: Misfire = "all"
    catch_up: str | None = None
    overlap: Overlap = "wait"


class CountersView(Struct, frozen=True, gc=False):
    """How the occurrences of an event have fared."""

    fired: Annotated[int, Meta(description="occurrences that were delivered")]
    missed: Annotated[int, Meta(description="occurrences that were due and not delivered")]
    skipped: Annotated[int, Meta(description="occurrences that were skipped on purpose")]
    reasons: Annotated[
        dict[str, int],
        Meta(description="missed: late, paused, expired; skipped: overlap, gap"),
    ]


class PauseView(Struct, frozen=True, omit_defaults=True, gc=False):
    """Since when an event is paused, and why."""

    since: Instant
    note: str | None = None


def repeat_view(repeat: Repeat) -> RepeatView:
    by_cron = repeat.cron is not None
    return RepeatView(
        None if by_cron else format_duration(repeat.every_ms),
        repeat.count,
        None if repeat.until_at is None else instant(repeat.until_at),
        repeat.cron,
        repeat.tz if by_cron else None,
        repeat.gap,
        repeat.repeated,
        format_duration(repeat.jitter_ms) if repeat.jitter_ms else None,
        repeat.misfire,
        None if repeat.catch_up_ms is None else format_duration(repeat.catch_up_ms),
        repeat.overlap,
    )


def counters_view(course: Course | None) -> CountersView:
    course = course or NOTHING_YET
    reasons = {
        "late": course.late,
        "paused": course.paused,
        "expired": course.expired,
        "overlap": course.overlapped,
        "gap": course.gaps,
    }
    counted = {reason: count for reason, count in reasons.items() if count}
    return CountersView(course.fired, course.missed, course.skipped, counted)


def pause_view(course: Course | None) -> PauseView | None:
    """The pause, if there is one."""
    if course is None or course.paused_at is None:
        return None
    return PauseView(instant(course.paused_at), course.note)
