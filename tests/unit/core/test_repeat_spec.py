"""The JSON form of recurrences and its checks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from everbell.core.amendment import Amendment
from everbell.core.event import Event, Repeat
from everbell.core.recurrence import ring_at
from everbell.core.repeat_spec import RepeatSpec, first_of, repeat_of
from everbell.core.spec import ChangeSpec, Draft, EventSpec, amendment_of, draft, event_of
from everbell.core.tenant import Limits, Tenant
from everbell.core.time import DAY_MS, HOUR_MS, MINUTE_MS, parse_instant
from everbell.errors import InvalidInput

NOW = parse_instant("2026-11-15T10:30:00Z")


def read(**fields: Any) -> Repeat:
    return repeat_of(msgspec.convert(fields, RepeatSpec))


def schedule(repeat: dict[str, Any], tenant: Tenant | None = None, **fields: Any) -> Draft:
    written = {"to": "queue:work", "repeat": repeat, **fields}
    return draft(msgspec.json.decode(msgspec.json.encode(written), type=EventSpec), tenant or Tenant(), NOW)


def change(**fields: Any) -> Amendment:
    return amendment_of(msgspec.json.decode(msgspec.json.encode(fields), type=ChangeSpec), Tenant(), NOW)


def test_every_field() -> None:
    assert read(
        cron="0  9 * * MON-FRI",
        tz="Europe/Berlin",
        count=5,
        until="2027-01-01T00:00:00Z",
        jitter="5m",
        gap="after",
        repeated="twice",
        misfire="latest",
        catch_up="2h",
        overlap="skip",
    ) == Repeat(
        0,
        5,
        parse_instant("2027-01-01T00:00:00Z"),
        "0 9 * * MON-FRI",
        "Europe/Berlin",
        "after",
        "twice",
        5 * MINUTE_MS,
        "latest",
        2 * HOUR_MS,
        "skip",
    )


def test_omitted_fields_have_harmless_defaults() -> None:
    assert read(every="1h") == Repeat(HOUR_MS)
    assert read(cron="@daily") == Repeat(0, cron="@daily")


@pytest.mark.parametrize(
    ("fields", "field", "complaint"),
    [
        ({}, "repeat.every", "is missing: give every"),
        ({"every": "1s", "cron": "@daily"}, "repeat.cron", "not both"),
        ({"every": "9ms"}, "repeat.every", "at least 10ms"),
        ({"cron": "0 0 30 2 *"}, "repeat.cron", "never matches"),
        ({"cron": "@daily", "tz": "Europe/Atlantis"}, "repeat.tz", "is not a time zone"),
        ({"every": "1d", "tz": "UTC"}, "repeat.tz", "goes with cron"),
        ({"every": "1d", "gap": "skip"}, "repeat.gap", "goes with cron"),
        ({"every": "1d", "repeated": "once"}, "repeat.repeated", "goes with cron"),
        ({"every": "1m", "jitter": "1m"}, "repeat.jitter", "shorter than every"),
        ({"cron": "@daily", "jitter": "25h"}, "repeat.jitter", "a day"),
        ({"every": "1m", "catch_up": "soon"}, "repeat.catch_up", "is not a duration"),
        ({"every": "1m", "until": "tomorrow"}, "repeat.until", "RFC 3339"),
    ],
)
def test_an_invalid_field_is_refused_by_its_name(fields: dict[str, Any], field: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(**fields)
    assert refused.value.field == field
    assert complaint in refused.value.reason


@pytest.mark.parametrize(
    ("repeat", "fields", "due"),
    [
        ({"cron": "0 9 * * *"}, {}, "2026-11-16T09:00:00Z"),
        ({"cron": "0 9 * * *", "tz": "America/New_York"}, {}, "2026-11-15T14:00:00Z"),
        ({"cron": "30 10 * * *"}, {}, "2026-11-16T10:30:00Z"),
        ({"cron": "30 10 * * *"}, {"at": "2026-11-15T10:30:00Z"}, "2026-11-15T10:30:00Z"),
        ({"cron": "0 9 * * *"}, {"at": "2026-12-01T00:00:00Z"}, "2026-12-01T09:00:00Z"),
        ({"cron": "0 9 * * *"}, {"in": "24h"}, "2026-11-17T09:00:00Z"),
        ({"every": "1h"}, {}, "2026-11-15T11:00:00Z"),
        ({"every": "1h"}, {"at": "2026-11-15T10:41:00Z"}, "2026-11-15T10:41:00Z"),
    ],
)
def test_the_due_time_of_the_first_occurrence(repeat: dict[str, Any], fields: dict[str, Any], due: str) -> None:
    assert schedule(repeat, **fields).due_at == parse_instant(due)


@pytest.mark.parametrize("repeat", [{"cron": "@daily"}, {"every": "1d"}])
def test_there_has_to_be_a_first_one(repeat: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"repeat\.until: lies before the first occurrence"):
        schedule({**repeat, "until": "2026-11-15T23:00:00Z"})


@pytest.mark.parametrize("bound", [{}, {"until": "2030-01-01T00:00:00Z"}])
@pytest.mark.parametrize(
    ("repeat", "fields"),
    [
        ({"cron": "0 0 */30 2 MON#2"}, {}),
        ({"cron": "30 2 * 3 SUNL", "tz": "Europe/Berlin"}, {"at": "9990-01-01T00:00:00Z"}),
        ({"cron": "@yearly"}, {"at": "9998-06-01T00:00:00Z"}),
    ],
)
def test_an_expression_that_never_matches_is_blamed(
    repeat: dict[str, Any], fields: dict[str, Any], bound: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=r"repeat\.cron: .*never matches"):
        schedule({**repeat, **bound}, **fields)


def test_the_horizon_is_that_of_the_first_one() -> None:
    tenant = Tenant(limits=Limits(horizon_ms=HOUR_MS))
    assert schedule({"every": "1h"}, tenant).due_at == NOW + HOUR_MS // 2
    with pytest.raises(InvalidInput, match="repeat: lies beyond the tenant's horizon"):
        schedule({"cron": "@yearly"}, tenant)


def test_jitter_begins_with_the_first_one() -> None:
    made = schedule({"cron": "@daily", "jitter": "1h"}, id="report")
    event = event_of(made, "report", "shop")

    assert event.due_at == made.due_at
    assert event.run_at == ring_at(made.repeat, "report", 1, made.due_at) > event.due_at
    assert event_of(schedule({"cron": "@daily"}), "report", "shop").run_at == made.due_at


def test_a_new_expression_gives_the_event_its_next_time() -> None:
    changed = change(repeat={"cron": "0 12 * * *"})
    assert changed.due_at == NOW + HOUR_MS + HOUR_MS // 2
    assert changed.repeat == Repeat(0, cron="0 12 * * *")
    assert change(repeat={"cron": "0 12 * * *"}, at="2026-11-20T13:00:00Z").due_at == parse_instant(
        "2026-11-21T12:00:00Z"
    )


def test_a_new_interval_continues_from_the_present_due_time() -> None:
    assert change(repeat={"every": "1d"}) == Amendment(repeat=Repeat(DAY_MS))
    with pytest.raises(InvalidInput, match=r"repeat\.until"):
        change(repeat={"every": "1d", "until": "2026-11-15T10:00:00Z"})


def test_a_pause_may_have_a_note() -> None:
    assert change(paused=True) == Amendment(paused=True, note=None)
    assert change(paused=False, note="mended") == Amendment(paused=False, note="mended")
    for wrong in ({"note": "why?"}, {"paused": True, "note": "line\nline"}):
        with pytest.raises(InvalidInput, match="note: "):
            change(**wrong)


def test_an_event_that_may_overlap_has_no_key() -> None:
    made = schedule({"every": "1h", "overlap": "allow"}).repeat
    assert made is not None
    assert made.overlap == "allow"
    with pytest.raises(InvalidInput, match=r"repeat\.overlap: allow goes without a key"):
        schedule({"every": "1h", "overlap": "allow"}, key="k")


def test_first_of_takes_an_interval_as_it_is() -> None:
    assert first_of(Repeat(HOUR_MS), 17, NOW) == 17


def test_a_single_event_needs_a_time() -> None:
    with pytest.raises(InvalidInput, match="at: give at"):
        draft(EventSpec(to="queue:work"), Tenant(), NOW)


def test_the_event_is_stored_as_it_was_asked_for() -> None:
    made = schedule({"cron": "@daily", "tz": "Asia/Tokyo"})
    event = event_of(made, "report", "shop", 1, 2, NOW)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) == event
