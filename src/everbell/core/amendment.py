"""What a change that a user asks for makes of an event: another time, another payload, a pause, the end of a pause.

A paused event keeps its due time and rings at the end of time, so that nothing in memory, in a lane or in the store has
to know about pauses. When it is resumed, what passed meanwhile is late, and its `misfire` decides.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from everbell.core.delivery_form import FORM_HEADER
from everbell.core.event import Event, Mark, Repeat, is_paused
from everbell.core.recurrence import NOTHING_YET, goes_apart, missed, proceed, ring_at
from everbell.core.retry import RetryPolicy
from everbell.core.tenant import BEYOND_HORIZON
from everbell.core.time import INSTANT_MAX, INSTANT_MIN
from everbell.errors import Conflict, InvalidInput


class Amendment(Struct, frozen=True, kw_only=True):
    """Which parts of an event change. What is unset stays as it is; None takes something away."""

    due_at: int | UnsetType = UNSET
    """A new due time gives the event its attempts back."""
    shift_ms: int | UnsetType = UNSET
    """Moves the due time, instead of `due_at`."""
    latest_at: int | UnsetType = UNSET
    """The due time must not be moved beyond this."""
    repeat: Repeat | None | UnsetType = UNSET
    to: str | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    content_type: str | None | UnsetType = UNSET
    headers: tuple[tuple[str, str], ...] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    retry: RetryPolicy | None | UnsetType = UNSET
    expires_ms: int | None | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    note: str | None | UnsetType = UNSET
    """Goes with `paused`."""
    run_at: int | UnsetType = UNSET
    """Set by the engine alone, when an event rings now."""
    mark: Mark | UnsetType = UNSET
    """The row of an outbox that asks for the change. An event keeps it, so that a repeated row changes nothing."""

    @property
    def moves(self) -> bool:
        """Whether it may change when the event rings."""
        return not (self.due_at is UNSET and self.shift_ms is UNSET and self.paused is UNSET)


NO_AMENDMENT = Amendment()

_MARKS_KEPT = 4  # One for each outbox; more than one changes an event hardly ever.
_EVENT_FIELDS = tuple(name for name in Amendment.__struct_fields__ if name in Event.__struct_fields__)


def has_change(event: Event, change: Amendment) -> bool:
    """Whether the event has the change already. The rows of an outbox that concern one event come in their order, so a
    mark stands for all rows before it, too.
    """
    if change.mark is UNSET:
        return False
    outbox, row = change.mark
    return any(name == outbox and last >= row for name, last in event.marks)


def amended(event: Event, change: Amendment, now: int) -> Event:
    """The event as the change makes it. Raises `Conflict`."""
    fields = _event_fields(event, change)
    if change.shift_ms is not UNSET:
        fields["due_at"] = _shifted(event, change.shift_ms, change.latest_at)
    if change.headers is not UNSET:
        fields["headers"] = (*change.headers, *(own for own in event.headers if own[0] == FORM_HEADER))
    after = replace(event, **fields, version=event.version + 1)
    check_overlap(after)
    if "due_at" in fields:
        run_at = ring_at(after.repeat, after.id, after.occurrence, after.due_at)
        after = replace(after, state="scheduled", attempt_count=0, run_at=run_at)
    elif "run_at" in fields:
        after = replace(after, state="scheduled")
    if change.paused is not UNSET:
        note = None if change.note is UNSET else change.note
        return _paused(after, note, now) if change.paused else _resumed(after, note, now)
    if is_paused(event) and "run_at" not in fields and after.course is not None:
        return replace(after, run_at=INSTANT_MAX)
    return after


def check_overlap(event: Event) -> None:
    """Refuse a rule by which occurrences of one key would overlap."""
    if event.key is not None and goes_apart(event):
        raise Conflict("overlap: allow goes without a key: events of a key go one at a time")


def _event_fields(event: Event, change: Amendment) -> dict[str, Any]:
    fields = {name: value for name in _EVENT_FIELDS if (value := getattr(change, name)) is not UNSET}
    if change.mark is not UNSET:
        others = [mark for mark in event.marks if mark[0] != change.mark[0]]
        fields["marks"] = (*others[1 - _MARKS_KEPT :], change.mark)
    return fields


def _shifted(event: Event, shift_ms: int, latest_at: int | UnsetType) -> int:
    due_at = event.due_at + shift_ms
    if latest_at is not UNSET and due_at > latest_at and shift_ms > 0:
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
