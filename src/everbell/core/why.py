"""Why an unfinished event has not been delivered yet: one sentence for people, and a code with facts for programs.

`explain` is pure. The owner of the event collects the `Situation` when it is asked, so an explanation is never stale.
The checks are in the order in which the event would pass them on its way to an attempt.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from everbell.core.event import Event, Status, is_paused, status_of
from everbell.core.pause import Pause
from everbell.core.time import format_instant

WhyCode = Literal[
    "no-owner",
    "delivering",
    "storing",
    "dead",
    "paused",
    "due-later",
    "retrying",
    "no-handler",
    "store-away",
    "behind",
    "memory-full",
    "breaker-open",
    "rate-limited",
    "no-worker",
    "awaiting-worker",
    "target-at-cap",
    "node-at-cap",
    "starting",
]


class Why(Struct, frozen=True, omit_defaults=True):
    """The explanation. Facts that do not apply are left out."""

    code: WhyCode
    sentence: str
    since: str | None = None
    until: str | None = None
    what: str | None = None
    """The kind of thing that is paused: `event`, `tenant`, `key`, `target` or `queue`."""
    name: str | None = None
    """The name of the paused thing."""
    by: str | None = None
    """The access key that made the pause."""
    note: str | None = None
    event: str | None = None
    """The id of the event that this one waits for."""
    status: Status | None = None
    """The status of that event."""
    key: str | None = None
    target: str | None = None
    queue: str | None = None
    reason: str | None = None
    """The error of the last attempt, or of the store."""
    attempt: int | None = None
    in_flight: int | None = None
    cap: int | None = None


class Ahead(Struct, frozen=True):
    """The event that is before another one in its key."""

    id: str
    status: Status


class Situation(Struct, frozen=True):
    """Everything that can hold an event up, as its owner knows it at this moment."""

    now: int
    target: str
    """The target group of the event."""
    is_owned: bool = True
    in_flight_since: int | None = None
    attempt: int = 1
    is_storing: bool = False
    pause: Pause | None = None
    """The pause of its tenant, key, target or queue, if one is in force."""
    lacks_handler: bool = False
    store_trouble: str | None = None
    ahead: Ahead | None = None
    is_left_in_store: bool = False
    breaker_until: int | None = None
    """The time of the next probe, while the breaker of its target is open."""
    rate_until: int | None = None
    """The time of the next attempt, while the rate of its target is used up."""
    workers_silent_ms: int | None = None
    """The time since the last call of a worker of its queue. None: no call since the node started."""
    worker_patience_ms: int = 0
    """The time after which a silent queue counts as a queue without a worker."""
    target_in_flight: int = 0
    target_cap: int | None = None
    tenant_in_flight: int = 0
    tenant_cap: int | None = None
    """The number of attempts that its tenant may have in flight on its node now. None: more than it has."""


def explain(event: Event, seen: Situation) -> Why:
    """Why the event is where it is."""
    if not seen.is_owned:
        return Why(
            "no-owner",
            "No node owns its partition at the moment, or the owner does not answer. It goes on when a node does.",
        )
    if seen.in_flight_since is not None:
        since = format_instant(seen.in_flight_since)
        sentence = f"Attempt {seen.attempt} is under way since {since}."
        return Why("delivering", sentence, since=since, attempt=seen.attempt)
    if event.state == "dead":
        sentence = f"It is dead{_because(event.reason)}. Redrive it, or cancel it."
        return Why("dead", sentence, since=format_instant(event.run_at), reason=event.reason)
    if is_paused(event):
        return _paused_event(event)
    if seen.is_storing:
        return Why("storing", "A change of it, or the outcome of an attempt, is being stored.")
    if event.run_at > seen.now and event.state != "waiting":
        return _later(event, seen)
    return _held_up(event, seen) or _at_target(event, seen)


def _paused_event(event: Event) -> Why:
    course = event.course
    assert course is not None
    assert course.paused_at is not None, "a paused event knows since when"
    since = format_instant(course.paused_at)
    sentence = f"It is paused since {since}{_because(course.note)}. Resume it to go on."
    return Why("paused", sentence, since=since, what="event", name=event.id, note=course.note)


def _later(event: Event, seen: Situation) -> Why:
    until = format_instant(event.run_at)
    if not event.attempt_count:
        return Why("due-later", f"It is due at {until}.", until=until)
    reason = event.attempts[-1].reason if event.attempts else None
    number = event.attempt_count + 1
    if seen.lacks_handler:
        sentence = f"{_no_handler(event.to)} Attempt {number} is due at {until}."
        return Why("no-handler", sentence, until=until, target=event.to, reason=reason, attempt=number)
    sentence = f"Attempt {event.attempt_count} failed{_because(reason)}. Attempt {number} starts at {until}."
    return Why("retrying", sentence, until=until, reason=reason, attempt=number)


def _no_handler(target: str) -> str:
    return f"It waits for {target}: the program that owns it has no handler of that name. It goes on when it has one."


def _held_up(event: Event, seen: Situation) -> Why | None:
    """What holds the due event up before it comes to its target, if anything does."""
    if seen.pause is not None:
        return _paused(seen.pause)
    if seen.lacks_handler:
        return Why("no-handler", _no_handler(event.to), target=event.to)
    if seen.store_trouble is not None:
        sentence = f"It is due, but the store cannot be used{_because(seen.store_trouble)}."
        return Why("store-away", sentence, reason=seen.store_trouble)
    if seen.ahead is not None:
        ahead = seen.ahead
        sentence = f"It waits for event {ahead.id}, which is before it in the key {event.key} and is {ahead.status}."
        return Why("behind", sentence, event=ahead.id, status=ahead.status, key=event.key)
    if seen.is_left_in_store:
        sentence = f"It is due, but the events for {seen.target} have used up their share of memory. It waits on disk."
        return Why("memory-full", sentence, target=seen.target)
    return None


def _at_target(event: Event, seen: Situation) -> Why:
    """What holds the due event up at its target."""
    target = seen.target
    if seen.breaker_until is not None:
        until = format_instant(seen.breaker_until)
        sentence = f"{target} failed so often that its breaker is open. The next probe starts at {until}."
        return Why("breaker-open", sentence, until=until, target=target)
    if seen.rate_until is not None:
        until = format_instant(seen.rate_until)
        return Why("rate-limited", f"The rate for {target} is used up until {until}.", until=until, target=target)
    if event.to.startswith("queue:"):
        return _at_queue(event.to.partition(":")[2], seen)
    if seen.target_cap is not None and seen.target_in_flight >= seen.target_cap:
        sentence = f"{target} has {seen.target_in_flight} attempts in flight, as many as it may have."
        return Why("target-at-cap", sentence, target=target, in_flight=seen.target_in_flight, cap=seen.target_cap)
    if seen.tenant_cap is not None and seen.tenant_in_flight >= seen.tenant_cap:
        sentence = (
            f"Its tenant has {seen.tenant_in_flight} attempts in flight on its node, as many as the node allows at the "
            "moment."
        )
        return Why("node-at-cap", sentence, in_flight=seen.tenant_in_flight, cap=seen.tenant_cap)
    return Why("starting", "It is due, and its attempt starts in a moment.", since=format_instant(event.run_at))


def _at_queue(queue: str, seen: Situation) -> Why:
    silent_ms = seen.workers_silent_ms
    if silent_ms is None:
        return Why("no-worker", f"No worker has called for the queue {queue} since its node started.", queue=queue)
    since = format_instant(seen.now - silent_ms)
    if silent_ms >= seen.worker_patience_ms:
        return Why("no-worker", f"No worker has called for the queue {queue} since {since}.", since=since, queue=queue)
    sentence = f"It waits for a worker of the queue {queue}. One called at {since}."
    return Why("awaiting-worker", sentence, since=since, queue=queue)


def _paused(pause: Pause) -> Why:
    since = format_instant(pause.since_at)
    until = None if pause.until_at is None else format_instant(pause.until_at)
    end = "" if until is None else f" until {until}"
    thing = pause.label[:1].upper() + pause.label[1:]
    sentence = f"{thing} is paused since {since}{end}, by {pause.by}{_because(pause.note)}."
    return Why("paused", sentence, since, until, pause.what, pause.name or pause.tenant, pause.by, pause.note)


def _because(reason: str | None) -> str:
    return "" if not reason else f": {reason.rstrip('.')}"


def status_ahead(event: Event, *, in_flight: bool) -> Ahead:
    """An event that is before another one in its key."""
    return Ahead(event.id, "delivering" if in_flight else status_of(event))
