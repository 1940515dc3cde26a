"""What a change that a user asks for makes of an event: another time, another payload, a pause, the end of a pause.

A paused event keeps its due time and rings at the end of time, so that nothing in memory, in a lane or in the store has
to know about pauses. When it is resumed, what passed meanwhile is late, and its `misfire` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everbell.core.event import Event, is_paused
from everbell.core.recurrence import NOTHING_YET, goes_apart, missed, proceed, ring_at
from everbell.core.tenant import BEYOND_HORIZON
from everbell.core.time import INSTANT_MAX, INSTANT_MIN
from everbell.errors import Conflict, InvalidInput


def amended(event: Event, fields: Mapping[str, Any], now: int) -> Event:
    """The event with some fields of `Event` changed, and perhaps `paused`, with a `note`.

    `shift_ms` moves its due time, to `latest_at` at the latest. A new due time gives it its attempts back. Raises
    `Conflict`.
    """
    asked = dict(fields)
    paused, note = asked.pop("paused", None), asked.pop("note", None)
    if "shift_ms" in asked:
        asked["due_at"] = _shifted(event, asked.pop("shift_ms"), asked.pop("latest_at", None))
    after = replace(event, **asked, version=event.version + 1)
    if after.key is not None and goes_apart(after):
        raise Conflict("overlap: allow goes without a key: events of a key go one at a time")
    if "due_at" in asked:
        run_at = ring_at(after.repeat, after.id, after.occurrence, after.due_at)
        after = replace(after, state="scheduled", attempt_count=0, run_at=run_at)
    elif "run_at" in asked:
        after = replace(after, state="scheduled")
    if paused:
        return _paused(after, note, now)
    if paused is False:
        return _resumed(after, note, now)
    if is_paused(event) and "run_at" not in asked and after.course is not None:
        return replace(after, run_at=INSTANT_MAX)
    return after


def _shifted(event: Event, shift_ms: int, latest_at: int | None) -> int:
    due_at = event.due_at + shift_ms
    if latest_at is not None and due_at > latest_at and shift_ms > 0:
        raise InvalidInput(BEYOND_HORIZON, "by")
    if not INSTANT_MIN <= due_at < INSTANT_MAX:
        raise Conflict("it would be due before the year 1970 or after the year 9999")
    return due_at


def _paused(event: Event, note: str | None, now: int) -> Event:
    if event.repeat is None:
        raise Conflict("only an event that repeats can be paused; give this one another time, or cancel it")
    course = event.course or NOTHING_YET
    since_at = now if course.paused_at is None else course.paused_at
    course = replace(course, paused_at=since_at, note=note)
    return replace(event, state="scheduled", run_at=INSTANT_MAX, course=course)


def _resumed(event: Event, note: str | None, now: int) -> Event:
    """It rings as it would have; what its misfire policy leaves out is missed because of the pause."""
    course = event.course
    if course is None or course.paused_at is None:
        raise Conflict("the event is not paused")
    course = replace(course, paused_at=None, note=note)
    run_at = now if event.attempts else ring_at(event.repeat, event.id, event.occurrence, event.due_at)
    resumed = replace(event, run_at=run_at, course=course)
    ahead = missed(resumed, now)
    if ahead is None or ahead.due_at is None:
        return resumed
    return proceed(resumed, ahead, replace(course, paused=course.paused + ahead.steps)) or resumed
