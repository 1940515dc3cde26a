"""Recurring events over HTTP: cron, previews, pauses, backfill, counters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everbell.channels.handler import HandlerChannel
from everbell.core.occurrence import Occurrence
from tests.turns import turns_beside
from tests.unit.api.api_caller import EVENTS, Caller, called

WEEKDAYS = {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin"}


def repeating(repeat: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"to": "queue:work", "repeat": repeat, **fields}


def test_cron_needs_no_other_time_and_comes_back_as_it_was_said() -> None:
    async def test(caller: Caller) -> None:
        repeat = {
            **WEEKDAYS,
            "count": 9,
            "until": "2027-01-01T00:00:00.000Z",
            "jitter": "5m",
            "gap": "after",
            "repeated": "twice",
            "misfire": "latest",
            "catch_up": "2h",
            "overlap": "skip",
        }
        made = await caller.call("PUT", f"{EVENTS}/report", repeating(repeat))
        assert (made.status, made.json["at"]) == (201, "2026-01-01T08:00:00.000Z")
        shown = (await caller.call("GET", f"{EVENTS}/report")).json
        assert shown["repeat"] == repeat
        assert shown["counters"] == {"fired": 0, "missed": 0, "skipped": 0, "reasons": {}}
        assert "2026-01-01T08:00:00.000Z" < shown["next_attempt_at"] <= "2026-01-01T08:05:00.000Z"
        await caller.call("PUT", f"{EVENTS}/plain", repeating(WEEKDAYS))
        assert (await caller.call("GET", f"{EVENTS}/plain")).json["repeat"] == WEEKDAYS

    called(test)


@pytest.mark.parametrize(
    ("repeat", "field", "complaint"),
    [
        ({"cron": "0 0 30 2 *"}, "repeat.cron", "never matches"),
        ({"cron": "61 * * * *"}, "repeat.cron", "'61' is not a minute (0 to 59)"),
        ({"cron": "@daily", "tz": "Mars/Olympus"}, "repeat.tz", "is not a time zone"),
        ({"cron": "@daily", "overlap": "never"}, "repeat.overlap", "must be one of"),
        ({"cron": "@daily", "misfire": "some"}, "repeat.misfire", "must be one of all, latest, skip"),
        ({"cron": "@daily", "zone": "UTC"}, "repeat.zone", "there is no such field"),
    ],
)
def test_an_invalid_recurrence_is_named(repeat: dict[str, Any], field: str, complaint: str) -> None:
    async def test(caller: Caller) -> None:
        targets = [("POST", EVENTS, repeating(repeat)), ("POST", "/v1/preview", {"repeat": repeat})]
        for method, target, body in targets:
            answer = await caller.call(method, target, body)
            assert (answer.status, answer.json["field"]) == (422, field)
            assert complaint in answer.json["detail"]

    called(test)


def test_a_preview_of_a_recurrence_that_is_not_scheduled() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call(
            "POST", "/v1/preview", {"repeat": WEEKDAYS, "at": "2026-03-27T00:00:00Z", "count": 2}
        )
        assert answer.status == 200
        assert answer.json == {
            "occurrences": [
                {"number": 1, "at": "2026-03-27T08:00:00.000Z", "local": "2026-03-27T09:00:00+01:00"},
                {"number": 2, "at": "2026-03-30T07:00:00.000Z", "local": "2026-03-30T09:00:00+02:00"},
            ],
            "more": True,
        }
        every = await caller.call("POST", "/v1/preview", {"repeat": {"every": "1h", "count": 2}, "in": "10m"})
        assert every.json == {
            "occurrences": [
                {"number": 1, "at": "2026-01-01T00:10:00.000Z"},
                {"number": 2, "at": "2026-01-01T01:10:00.000Z"},
            ],
            "more": False,
        }
        for wrong in ({"at": "2026-03-27T00:00:00Z", "in": 1}, {"count": 0}, {"count": 1_001}, {"in": 1e300}):
            assert (await caller.call("POST", "/v1/preview", {"repeat": WEEKDAYS, **wrong})).status == 422

    called(test)


def test_a_preview_of_an_event() -> None:
    async def test(caller: Caller) -> None:
        await caller.call("PUT", f"{EVENTS}/a%2Fb", repeating({"every": "1h", "jitter": "30m"}))
        answer = await caller.call("GET", f"{EVENTS}/a%2Fb/preview?count=3")
        times = answer.json["occurrences"]
        assert [(shown["number"], shown["at"]) for shown in times] == [
            (1, "2026-01-01T01:00:00.000Z"),
            (2, "2026-01-01T02:00:00.000Z"),
            (3, "2026-01-01T03:00:00.000Z"),
        ]
        assert all(shown["rings_at"] > shown["at"] for shown in times)
        assert len((await caller.call("GET", f"{EVENTS}/a%2Fb/preview")).json["occurrences"]) == 10
        await caller.call("PUT", f"{EVENTS}/once", {"to": "queue:work", "in": "1h"})
        single = await caller.call("GET", f"{EVENTS}/once/preview")
        assert single.json == {"occurrences": [{"number": 1, "at": "2026-01-01T01:00:00.000Z"}], "more": False}
        await caller.call("DELETE", f"{EVENTS}/once")
        assert (await caller.call("GET", f"{EVENTS}/once/preview")).status == 409
        assert (await caller.call("GET", f"{EVENTS}/nobody/preview")).status == 404
        assert (await caller.call("GET", f"{EVENTS}/a%2Fb/preview?count=0")).status == 422

    called(test)


def test_a_pause_has_a_note_and_an_end() -> None:
    async def test(caller: Caller) -> None:
        target = f"{EVENTS}/report"
        await caller.call("PUT", target, repeating({"every": "1h", "misfire": "skip"}))
        paused = await caller.call("PATCH", target, {"paused": True, "note": "moving house"})
        assert paused.status == 200
        assert paused.json["status"] == "paused"
        assert paused.json["paused"] == {"since": "2026-01-01T00:00:00.000Z", "note": "moving house"}
        assert "next_attempt_at" not in paused.json
        found = (await caller.call("GET", f"{EVENTS}?status=paused")).json["events"]
        assert [event["id"] for event in found] == ["report"]
        await asyncio.sleep(3 * 3_600 + 60)
        resumed = (await caller.call("PATCH", target, {"paused": False})).json
        assert (resumed["status"], resumed["at"]) == ("scheduled", "2026-01-01T04:00:00.000Z")
        assert resumed["counters"] == {"fired": 0, "missed": 3, "skipped": 0, "reasons": {"paused": 3}}
        assert "paused" not in resumed
        assert (await caller.call("PATCH", target, {"paused": False})).status == 409
        assert (await caller.call("PATCH", target, {"note": "x"})).status == 422
        single = await caller.schedule()
        assert (await caller.call("PATCH", f"{EVENTS}/{single}", {"paused": True})).status == 409

    called(test)


def test_backfill_is_safe_to_repeat() -> None:
    got: list[Occurrence] = []

    async def handle(occurrence: Occurrence) -> None:
        got.append(occurrence)

    channel = HandlerChannel()
    channel.register("work", handle)

    async def test(caller: Caller) -> None:
        caller = Caller(caller.engine, caller.clock, allows_handlers=True)
        body = repeating({"every": "1h"}, to="handler:work", payload={"n": 1}, expires="1s", key="k", tags=["t"])
        await caller.call("PUT", f"{EVENTS}/report", body)
        asked = {"from": "2025-12-31T21:00:00Z", "until": "2025-12-31T23:30:00Z"}
        first = await caller.call("POST", f"{EVENTS}/report/backfill", asked)
        assert first.status == 200
        assert first.json == {
            "scheduled": 3,
            "existing": 0,
            "ids": [f"backfill:report@2025-12-31T{hour}:00:00.000Z" for hour in (21, 22, 23)],
            "errors": [],
        }
        again = await caller.call("POST", f"{EVENTS}/report/backfill", asked)
        assert (again.json["scheduled"], again.json["existing"]) == (0, 3)
        await asyncio.sleep(1)
        assert [occurrence.id for occurrence in got] == first.json["ids"]
        assert [occurrence.due.hour for occurrence in got] == [21, 22, 23]
        assert {(occurrence.raw, occurrence.key, occurrence.tags) for occurrence in got} == {(b'{"n":1}', "k", ("t",))}
        nothing = {"from": "2025-12-31T21:00:01Z", "until": "2025-12-31T21:00:02Z"}
        assert (await caller.call("POST", f"{EVENTS}/report/backfill", nothing)).json["ids"] == []

    called(test, {"handler": channel})


def test_ranges_that_cannot_be_backfilled() -> None:
    async def test(caller: Caller) -> None:
        await caller.call("PUT", f"{EVENTS}/report", repeating({"every": "1h"}))
        single = await caller.schedule()
        past = {"from": "2025-12-31T00:00:00Z", "until": "2025-12-31T03:00:00Z"}
        cases = [
            ("report", {**past, "until": "2026-01-01T00:00:01Z"}, 422, "lies in the future"),
            ("report", {**past, "until": "2025-12-30T00:00:00Z"}, 422, "lies before from"),
            ("report", {**past, "from": "2025-12-30T00:00:00Z"}, 413, "more than 5 occurrences"),
            ("report", {"from": "yesterday", "until": "now"}, 422, "RFC 3339"),
            (single, past, 409, "only an event that repeats"),
            ("nobody", past, 404, "there is no event"),
        ]
        for event_id, body, status, complaint in cases:
            answer = await caller.call("POST", f"{EVENTS}/{event_id}/backfill", body)
            assert answer.status == status
            assert complaint in answer.json["detail"]

    called(test)


def test_occurrences_that_overlap_are_events_of_their_own() -> None:
    got: list[Occurrence] = []

    async def handle(occurrence: Occurrence) -> None:
        got.append(occurrence)
        await asyncio.sleep(2.5)

    channel = HandlerChannel()
    channel.register("slow", handle)

    async def test(caller: Caller) -> None:
        caller = Caller(caller.engine, caller.clock, allows_handlers=True)
        body = repeating({"every": "1s", "count": 4, "overlap": "allow"}, to="handler:slow")
        await caller.call("PUT", f"{EVENTS}/slow", body)
        await asyncio.sleep(3.1)
        assert [(occurrence.id, occurrence.number) for occurrence in got] == [("slow", 1), ("slow", 2), ("slow", 3)]
        under_way = (await caller.call("GET", f"{EVENTS}?status=delivering")).json["events"]
        assert {event["repeat_of"] for event in under_way if "repeat" not in event} == {"slow"}
        await asyncio.sleep(10)
        ended = (await caller.call("GET", f"{EVENTS}/slow")).json
        assert (ended["status"], ended["occurrence"]) == ("delivered", 4)
        assert ended["counters"] == {"fired": 4, "missed": 0, "skipped": 0, "reasons": {}}
        records = (await caller.call("GET", f"{EVENTS}?status=delivered")).json["events"]
        assert sorted(record["occurrence"] for record in records if record.get("repeat_of") == "slow") == [1, 2, 3, 4]
        keyed = await caller.call("PUT", f"{EVENTS}/keyed", {**body, "key": "k"})
        assert (keyed.status, keyed.json["field"]) == (422, "repeat.overlap")

    called(test, {"handler": channel})


def test_counters_stay_with_an_event_that_ended() -> None:
    async def handle(occurrence: Occurrence) -> None:
        await asyncio.sleep(2.5)

    channel = HandlerChannel()
    channel.register("slow", handle)

    async def test(caller: Caller) -> None:
        caller = Caller(caller.engine, caller.clock, allows_handlers=True)
        body = repeating({"every": "1s", "count": 4, "overlap": "skip"}, to="handler:slow")
        await caller.call("PUT", f"{EVENTS}/slow", body)
        await asyncio.sleep(60)
        ended = (await caller.call("GET", f"{EVENTS}/slow")).json
        assert ended["status"] == "delivered"
        assert ended["counters"] == {"fired": 2, "missed": 0, "skipped": 2, "reasons": {"overlap": 2}}

    called(test, {"handler": channel})


def test_other_tasks_run_while_a_long_preview_is_calculated() -> None:
    async def test(caller: Caller) -> None:
        body = {
            "repeat": {"cron": "*/7 3 * * MON", "tz": "Europe/Berlin"},
            "at": "1970-01-01T00:00:00Z",
            "count": 1_000,
        }
        answer, turns = await turns_beside(caller.call("POST", "/v1/preview", body))
        assert len(answer.json["occurrences"]) == 1_000
        assert turns >= 10

    called(test)
