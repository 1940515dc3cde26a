"""Events as output: JSON for programs, words for people."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from codecs import lookup
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from everbell.cli.terminal import Paint, Table, columns_of, folded, harmless
from everbell.cli.timestamps import exact, millis, relative, roughly
from everbell.client.answers import AttemptView, EventView
from everbell.clock import SystemClock
from everbell.core.time import format_instant

T = TypeVar("T")

PAYLOAD_SHOWN_MAX = 2_000
_FACT_INDENT = 13
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")

HEADINGS = ("ID", "STATUS", "DUE", "TO", "KEY", "TRIES")
STATUS_COLUMN = 1
FLEXIBLE = (3, 4)
"""The columns that a narrow terminal cuts: target and key. The id stays whole, because other commands take it."""


def print_json(value: Any) -> None:
    """One JSON document on one line; times as the server writes them, absent fields left out."""
    print_line(msgspec.json.encode(_plain(value)))


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """The result of a command: JSON for programs, a line for people."""
    if as_json:
        print_json(value)
    else:
        print(text)


def print_list(
    values: Sequence[T], headings: Sequence[str], row: Callable[[T], Sequence[str]], *, as_json: bool
) -> None:
    """Several values: a JSON document a line for programs, a table for people."""
    if as_json:
        for value in values:
            print_json(value)
    else:
        Table(headings, Paint()).print([row(value) for value in values])


def due_text(event_id: str, at: datetime) -> str:
    """When an event is due, as a line."""
    return f"{harmless(event_id)} rings {relative(at, SystemClock().now())}, at {exact(at)}"


def print_line(document: bytes) -> None:
    """A JSON document. If the locale is not UTF-8, it has escapes, so that a program gets no question marks."""
    text = document.decode()
    if not text.isascii() and lookup(sys.stdout.encoding).name != "utf-8":
        text = _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    sys.stdout.write(text + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(millis(value))
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        if isinstance(fields.get("payload"), bytes):
            fields["payload_base64"] = b64encode(fields.pop("payload")).decode()
        return {name: _plain(field) for name, field in fields.items() if field is not None and field != ()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def row(event: EventView, now: int) -> tuple[str, ...]:
    """An event as a row under `HEADINGS`."""
    moment = event.finished_at or event.next_attempt_at or event.at
    return (
        harmless(event.id),
        event.status,
        relative(moment, now),
        harmless(event.to),
        harmless(event.key or ""),
        str(event.attempt_count or ""),
    )


def print_event(event: EventView, now: int, paint: Paint) -> None:
    print(paint(harmless(event.id), "bold"))
    for label, text in _facts(event, now):
        shown = paint.status(event.status) + text[len(event.status) :] if label == "status" else text
        print(f"  {paint(label.ljust(9), 'dim')}  {folded(shown, columns_of(sys.stdout), _FACT_INDENT)}")
    if event.attempts:
        _print_attempts(event, paint)


def _facts(event: EventView, now: int) -> list[tuple[str, str]]:
    facts = [("status", _status(event, now)), *_why(event), ("due", _when(event.at, now)), ("to", harmless(event.to))]
    if event.key is not None:
        facts.append(("key", harmless(event.key)))
    if event.tags:
        facts.append(("tags", harmless(", ".join(event.tags))))
    if event.repeat is not None:
        facts.append(("repeat", harmless(_repeat(event))))
    if event.counters is not None:
        facts.append(("rang", _counters(event.counters)))
    if event.paused is not None:
        facts.append(("paused", harmless(_paused(event.paused))))
    if event.retry is not None:
        attempts = event.retry["max_attempts"] or "unlimited"
        pauses = "{backoff} to {max_backoff}".format_map(event.retry)
        facts.append(("retry", f"{attempts} attempts, pauses of {pauses}"))
    if event.delivery is not None:
        facts.append(("delivery", event.delivery))
    if event.expires is not None:
        facts.append(("expires", f"{event.expires} after it is due"))
    facts += [("header", harmless(f"{name}: {value}")) for name, value in (event.headers or {}).items()]
    if event.payload is not None:
        facts.append(("payload", _payload(event)))
    times = (("produced", event.produced_at), ("created", event.created_at), ("finished", event.finished_at))
    facts += [(label, _when(at, now)) for label, at in times if at is not None]
    if event.reason is not None:
        facts.append(("reason", harmless(event.reason)))
    facts += _holders(event)
    facts.append(("version", str(event.version)))
    return facts


def _why(event: EventView) -> list[tuple[str, str]]:
    return [] if event.why is None else [("why", harmless(event.why.sentence))]


def _holders(event: EventView) -> list[tuple[str, str]]:
    if event.replicas is None:
        return []
    held_by = ", ".join(event.replicas["held_by"])
    line = f"; {event.replicas['next']} is next in line" if event.replicas.get("next") else ""
    return [("replicas", harmless(f"{event.replicas['count']} nodes; held by {held_by}{line}"))]


def _status(event: EventView, now: int) -> str:
    rings_at = event.next_attempt_at or event.at
    if event.status in ("scheduled", "retrying") and millis(rings_at) < now:
        # It is due and not in flight: no worker has leased it, or other events are before it.
        awaited = "a worker" if event.to.startswith("queue:") else "its turn"
        return f"{event.status}, waits for {awaited} since {roughly(now - millis(rings_at))}"
    if event.next_attempt_at is not None:
        return f"{event.status}, next attempt {relative(event.next_attempt_at, now)}"
    if event.status == "scheduled":
        return f"scheduled, rings {relative(event.at, now)}"
    if event.status == "paused":
        return "paused; `everbell resume` lets it ring again"
    if event.status == "dead":
        return "dead; `everbell redrive` gives it another chance"
    return str(event.status)


def _when(moment: datetime, now: int) -> str:
    return f"{exact(moment)} ({relative(moment, now)})"


def _repeat(event: EventView) -> str:
    assert event.repeat is not None
    repeat = dict(event.repeat)
    every, cron, zone = repeat.pop("every", None), repeat.pop("cron", None), repeat.pop("tz", None)
    count = repeat.pop("count", None)
    text = f"every {every}" if cron is None else f"{cron} in {zone}"
    text += f", this is number {event.occurrence}" + ("" if count is None else f" of {count}")
    return ", ".join([text, *(f"{name} {value}" for name, value in repeat.items())])


def _counters(counters: Mapping[str, Any]) -> str:
    text = f"{counters['fired']} times, missed {counters['missed']}, skipped {counters['skipped']}"
    reasons = ", ".join(f"{count} {reason}" for reason, count in counters.get("reasons", {}).items())
    return f"{text} ({reasons})" if reasons else text


def _paused(paused: Mapping[str, Any]) -> str:
    return f"since {paused['since']}" + (f": {paused['note']}" if paused.get("note") else "")


def _payload(event: EventView) -> str:
    if isinstance(event.payload, bytes):
        return f"{len(event.payload)} bytes of {harmless(event.content_type or '')}"
    # Not with msgspec, which writes null for a number that is infinite.
    return harmless(json.dumps(event.payload, ensure_ascii=False, separators=(",", ":")), PAYLOAD_SHOWN_MAX)


def _print_attempts(event: EventView, paint: Paint) -> None:
    missing = event.attempt_count - len(event.attempts)
    print(f"  {paint('attempts', 'dim')}" + (f"   ({missing} earlier ones are not kept)" if missing > 0 else ""))
    table = Table(("", "STARTED", "TOOK", "RESULT", "CODE", "REASON"), paint)
    table.print([_attempt_row(attempt) for attempt in event.attempts])


def _attempt_row(attempt: AttemptView) -> tuple[str, ...]:
    return (
        f"  #{attempt.number}",
        exact(attempt.started_at),
        roughly(attempt.duration_ms),
        attempt.result,
        str(attempt.code or ""),
        harmless(attempt.reason or ""),
    )
