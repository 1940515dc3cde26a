"""The JSON form of a recurrence, and its checks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from everbell.core.cron import EXPRESSION_LENGTH_MAX, parse_cron
from everbell.core.event import Misfire, Overlap, Repeat
from everbell.core.recurrence import first_due
from everbell.core.time import DAY_MS, Duration, format_instant, parse_duration, parse_instant
from everbell.core.timetable import Gap, Repeated, check_zone
from everbell.errors import InvalidInput

EVERY_MS_MIN = 10
CRON_JITTER_MS_MAX = DAY_MS


class RepeatSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How an event comes again. Exactly one of `every` and `cron`."""

    every: Annotated[Duration, Meta(description="the interval, on the grid of the first due time")] | None = None
    count: Annotated[int, Meta(ge=1, le=1_000_000_000, description="how many occurrences in all")] | None = None
    until: Annotated[str, Meta(description="no occurrence after this RFC 3339 time")] | None = None
    cron: (
        Annotated[
            str,
            Meta(
                max_length=EXPRESSION_LENGTH_MAX,
                description="minute, hour, day of month, month, day of week; six fields begin with seconds; or @daily",
            ),
        ]
        | None
    ) = None
    tz: Annotated[str, Meta(max_length=64, description="the IANA zone of cron; UTC unless given")] | None = None
    gap: (
        Annotated[Gap, Meta(description="cron, at a time that the clocks leave out: not at all, or right after it")]
        | None
    ) = None
    repeated: (
        Annotated[Repeated, Meta(description="cron, at a time that comes twice: at the first, or at both")] | None
    ) = None
    jitter: Annotated[Duration, Meta(description="each rings later by a part of this, always the same")] | None = None
    misfire: Annotated[Misfire, Meta(description="which of those that are late ring")] = "all"
    catch_up: Annotated[Duration, Meta(description="how late an occurrence may begin at all")] | None = None
    overlap: Annotated[Overlap, Meta(description="what comes while the one before is under way")] = "wait"


def repeat_of(spec: RepeatSpec) -> Repeat:
    """The recurrence for the engine. Raises `InvalidInput` naming the field."""
    if spec.every is None and spec.cron is None:
        raise InvalidInput("is missing: give every (an interval) or cron (an expression)", "repeat.every")
    if spec.every is not None and spec.cron is not None:
        raise InvalidInput("give either every or cron, not both", "repeat.cron")
    every_ms = 0 if spec.every is None else _every(spec.every)
    cron = None if spec.cron is None else _cron(spec.cron)
    if cron is None:
        _refuse_clock_rules(spec)
    return Repeat(
        every_ms,
        spec.count,
        None if spec.until is None else parse_instant(spec.until, "repeat.until"),
        cron,
        "UTC" if spec.tz is None else check_zone(spec.tz),
        spec.gap or "skip",
        spec.repeated,
        0 if spec.jitter is None else _jitter(spec.jitter, every_ms),
        spec.misfire,
        None if spec.catch_up is None else parse_duration(spec.catch_up, "repeat.catch_up"),
        spec.overlap,
    )


def first_of(repeat: Repeat, asked_at: int | None, now: int) -> int:
    """The due time of the first occurrence: with cron, the first match at `asked_at` or later; without `asked_at`,
    after now.

    Raises `InvalidInput` if there is none.
    """
    not_before = now + 1 if asked_at is None else asked_at
    if asked_at is not None and repeat.cron is None:
        first_at: int | None = asked_at
    else:
        # Ignore `until` here: if nothing ever matches, the message must blame the expression and not the end.
        first_at = first_due(replace(repeat, until_at=None), not_before)
    if first_at is None:
        raise InvalidInput(
            f"never matches from {format_instant(not_before)} on; a time that clocks leave out needs gap after",
            "repeat.cron",
        )
    if repeat.until_at is not None and repeat.until_at < first_at:
        raise InvalidInput("lies before the first occurrence", "repeat.until")
    return first_at


def _every(every: Duration) -> int:
    every_ms = parse_duration(every, "repeat.every")
    if every_ms < EVERY_MS_MIN:
        raise InvalidInput(f"must be at least {EVERY_MS_MIN}ms", "repeat.every")
    return every_ms


def _cron(text: str) -> str:
    parse_cron(text)
    return " ".join(text.split())


def _jitter(jitter: Duration, every_ms: int) -> int:
    jitter_ms = parse_duration(jitter, "repeat.jitter")
    if every_ms and jitter_ms >= every_ms:
        raise InvalidInput("must be shorter than every", "repeat.jitter")
    if jitter_ms > CRON_JITTER_MS_MAX and not every_ms:
        raise InvalidInput("must not be longer than a day", "repeat.jitter")
    return jitter_ms


def _refuse_clock_rules(spec: RepeatSpec) -> None:
    """An interval is elapsed time, so the rules about local clocks do not apply."""
    for name, value in (("tz", spec.tz), ("gap", spec.gap), ("repeated", spec.repeated)):
        if value is not None:
            raise InvalidInput("goes with cron; every is an interval, the same in all zones", f"repeat.{name}")
