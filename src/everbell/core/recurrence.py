"""Recurrence: when the occurrences of an event ring, and which of them are left out.

Occurrences are numbered from 1 by their nominal times, whether or not they ring; `count` and `until` apply to these
numbers and times. The next occurrence is made when the previous one has ended. Rules for occurrences that are late
by then:

    overlap wait    the occurrence rings late, subject to `misfire`
            skip    occurrences that came due while the previous one was in flight are left out
            allow   each occurrence becomes an event of its own when it is due, so none waits
    misfire all     every late occurrence rings, in turn
            latest  only the newest late occurrence rings
            skip    no late occurrence rings; the next one in the future does

`catch_up` limits how late an occurrence may begin. The event's `Course` counts all occurrences that were left out,
with the reason. All rules are arithmetic, so an outage of a year costs no more than one of a minute.

Jitter is a hash of id and occurrence: it is the same on every node and after every restart, and it only adds time.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from everbell.core.event import Course, Event, Repeat
from everbell.core.time import INSTANT_MAX
from everbell.core.timetable import Timetable, timetable_of

GRACE_MS = 1_000
"""How late an occurrence may begin with misfire `skip` and no `catch_up`."""

NOTHING_YET = Course()


class Jump(Struct, frozen=True, gc=False):
    """An advance to a later nominal time (None: the event is over), by a number of occurrences."""

    due_at: int | None
    steps: int


def step(repeat: Repeat, due_at: int) -> tuple[int | None, int]:
    """The nominal time after `due_at`, if any, and the number of clock gaps skipped on the way."""
    if repeat.cron is None:
        next_at, gaps = due_at + repeat.every_ms, 0
    else:
        at_s, gaps = _timetable(repeat).after(due_at // 1_000)
        if at_s is None:
            return None, 0
        next_at = at_s * 1_000
    return (next_at, gaps) if next_at <= _end(repeat) else (None, 0)


def first_due(repeat: Repeat, not_before: int) -> int | None:
    """The first nominal time at `not_before` or later. Intervals are counted from 1970."""
    if repeat.cron is None:
        first_at = -(-not_before // repeat.every_ms) * repeat.every_ms
        return first_at if first_at <= _end(repeat) else None
    return step(repeat, not_before - 1)[0]


def ring_at(repeat: Repeat | None, event_id: str, occurrence: int, due_at: int) -> int:
    """When an occurrence rings: its nominal time plus jitter."""
    if repeat is None or repeat.jitter_ms == 0:
        return due_at
    digest = blake2b(f"{event_id}\0{occurrence}".encode(), digest_size=8).digest()
    return min(due_at + int.from_bytes(digest, "big") % (repeat.jitter_ms + 1), INSTANT_MAX)


def upcoming(repeat: Repeat, due_at: int, occurrence: int = 1) -> Iterator[tuple[int, int]]:
    """This occurrence and those after it, as (number, nominal time)."""
    at: int | None = due_at
    while at is not None and (repeat.count is None or occurrence <= repeat.count):
        yield occurrence, at
        at, _ = step(repeat, at)
        occurrence += 1


def between(repeat: Repeat, due_at: int, from_at: int, until_at: int) -> Iterator[int]:
    """The nominal times in a range, both ends included, also those before the first occurrence."""
    at = _first_from(repeat, due_at, from_at)
    while at is not None and at <= min(until_at, _end(repeat)):
        yield at
        at, _ = step(repeat, at)


def count_between(repeat: Repeat, due_at: int, from_at: int, until_at: int) -> int:
    """The number of times that `between` gives."""
    first_at = _first_from(repeat, due_at, from_at)
    until_at = min(until_at, _end(repeat))
    return 0 if first_at is None or first_at > until_at else 1 + _count(repeat, first_at, until_at)


def _first_from(repeat: Repeat, due_at: int, from_at: int) -> int | None:
    """The first nominal time at `from_at` or later, also before the first occurrence."""
    if repeat.cron is None:
        return due_at + -((due_at - from_at) // repeat.every_ms) * repeat.every_ms
    return step(repeat, from_at - 1)[0]


def missed(event: Event, now: int) -> Jump | None:
    """How to advance if the occurrence that is about to begin is too late; None if it may begin.

    An occurrence with an earlier attempt began in time.
    """
    repeat = event.repeat
    if repeat is None or event.attempts:
        return None
    window_ms = _window_ms(repeat)
    if repeat.misfire == "all" and window_ms is None:
        return None
    is_late = window_ms is not None and now - event.run_at > window_ms
    if repeat.misfire == "all":
        assert window_ms is not None, "without a window, nothing is too late"
        return jump(event, now - window_ms - 1) if is_late else None
    past_at = now - repeat.jitter_ms
    newest_at = _newest(event, repeat, past_at)
    if newest_at is None and not is_late:
        return None
    if repeat.misfire == "skip" or newest_at is None:
        return jump(event, past_at)
    return jump(event, newest_at if window_ms is not None and now - newest_at > window_ms else newest_at - 1)


def jump(event: Event, beyond_at: int) -> Jump:
    """Advance to the first occurrence later than `beyond_at`, by at least one."""
    repeat = event.repeat
    assert repeat is not None, "the event repeats"
    beyond_at = max(beyond_at, event.due_at)
    steps = 1 + _count(repeat, event.due_at, min(beyond_at, _end(repeat)))
    left = None if repeat.count is None else repeat.count - event.occurrence
    if left is not None and steps > left:
        return Jump(None, left + 1)
    if repeat.cron is None:
        due_at: int | None = event.due_at + steps * repeat.every_ms
        return Jump(due_at if event.due_at + steps * repeat.every_ms <= _end(repeat) else None, steps)
    return Jump(step(repeat, beyond_at)[0], steps)


def following(event: Event, course: Course, began_at: int, now: int) -> tuple[Event | None, Course]:
    """The occurrence after one that began at `began_at` and has ended, and the updated course."""
    repeat = event.repeat
    assert repeat is not None, "the event repeats"
    if repeat.count is not None and event.occurrence >= repeat.count:
        return None, course
    next_at, gaps = step(repeat, event.due_at)
    if gaps:
        course = replace(course, gaps=course.gaps + gaps)
    if next_at is None:
        return None, course
    if repeat.overlap == "skip" and began_at < next_at <= now:
        ahead = jump(event, now)
        course = replace(course, overlapped=course.overlapped + ahead.steps - 1)
        return proceed(event, ahead, course), course
    return proceed(event, Jump(next_at, 1), course), course


def proceed(event: Event, ahead: Jump, course: Course) -> Event | None:
    """The event at the occurrence that a jump leads to, without attempts."""
    if ahead.due_at is None:
        return None
    occurrence = event.occurrence + ahead.steps
    paused = course.paused_at is not None
    return replace(
        event,
        due_at=ahead.due_at,
        run_at=INSTANT_MAX if paused else ring_at(event.repeat, event.id, occurrence, ahead.due_at),
        state="scheduled",
        occurrence=occurrence,
        attempt_count=0,
        attempts=(),
        reason=None,
        course=course,
    )


def goes_apart(event: Event) -> bool:
    """Whether occurrences become events of their own, which do not wait for each other."""
    return event.repeat is not None and event.repeat.overlap == "allow"


def detached(event: Event, event_id: str, sequence: int, now: int) -> Event:
    """An occurrence as an event of its own in the same partition. Receivers see the recurring event's id as before."""
    return replace(
        event,
        id=event_id,
        sequence=sequence,
        created_at=now,
        version=1,
        state="scheduled",
        repeat=None,
        course=None,
        origin=event.id,
    )


def _window_ms(repeat: Repeat) -> int | None:
    if repeat.catch_up_ms is None and repeat.misfire == "skip":
        return GRACE_MS
    return repeat.catch_up_ms


def _newest(event: Event, repeat: Repeat, past_at: int) -> int | None:
    """The newest occurrence after this one with a nominal time in the past."""
    steps = _count(repeat, event.due_at, min(past_at, _end(repeat)))
    if repeat.count is not None:
        steps = min(steps, repeat.count - event.occurrence)
    if steps <= 0:
        return None
    if repeat.cron is None:
        return event.due_at + steps * repeat.every_ms
    return _timetable(repeat).nth(event.due_at // 1_000, steps) * 1_000


def _count(repeat: Repeat, after_at: int, until_at: int) -> int:
    """The number of nominal times later than `after_at`, itself one of them, and not later than `until_at`."""
    if repeat.cron is None:
        return max(until_at - after_at, 0) // repeat.every_ms
    return _timetable(repeat).count(after_at // 1_000, until_at // 1_000)


def _end(repeat: Repeat) -> int:
    return INSTANT_MAX if repeat.until_at is None else repeat.until_at


def _timetable(repeat: Repeat) -> Timetable:
    assert repeat.cron is not None, "an interval has no timetable"
    return timetable_of(repeat.cron, repeat.tz, repeat.gap, repeat.repeated)
