"""Recurring events on a real server: an outage, a pause through it, a backfill, a preview."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.machine import Machine, now_ms, until
from tests.acceptance.receiver import Receiver

EVERY_MS = 100
COUNT = 10


@pytest.mark.parametrize("options", [(), ("--gateways", "1")])
def test_after_an_outage_each_event_follows_its_misfire_policy(tmp_path: Path, options: tuple[str, ...]) -> None:
    with Receiver() as receiver, Machine(tmp_path, *options) as machine:
        for misfire in ("all", "latest", "skip"):
            repeat = {"every": f"{EVERY_MS}ms", "count": COUNT, "misfire": misfire}
            machine.schedule(receiver.url("/ok"), id=misfire, repeat=repeat, **{"in": "1s"})
        scheduled_at = now_ms()
        machine.kill()
        over_at = scheduled_at + 1_000 + COUNT * EVERY_MS + 1_100
        until(lambda: now_ms() > over_at, "the last occurrence is later than its grace")
        machine.start()
        ended = {
            "all": machine.until_status("all", "delivered"),
            "latest": machine.until_status("latest", "delivered"),
            "skip": machine.until_status("skip", "expired"),
        }
        assert ended["all"]["counters"] == {"fired": COUNT, "missed": 0, "skipped": 0, "reasons": {}}
        assert ended["latest"]["counters"] == {"fired": 1, "missed": 9, "skipped": 0, "reasons": {"late": 9}}
        assert ended["skip"]["counters"] == {"fired": 0, "missed": 10, "skipped": 0, "reasons": {"late": 10}}
        assert ended["skip"]["reason"] == "missed: it could not begin in time, nor could the 9 after it"
        names = [(each.id.partition(":")[0], each.occurrence) for each in receiver.received]
        rang = {misfire: [number for name, number in names if name == misfire] for misfire in ended}
        assert rang == {"all": list(range(1, COUNT + 1)), "latest": [COUNT], "skip": []}


@pytest.mark.parametrize("options", [(), ("--gateways", "1")])
def test_the_pause_of_a_recurring_event_survives_a_crash(tmp_path: Path, options: tuple[str, ...]) -> None:
    with Receiver() as receiver, Machine(tmp_path, *options) as machine:
        path = "/v1/tenants/shop/events/report"
        machine.schedule(receiver.url("/ok"), id="report", repeat={"every": "1h", "jitter": "1m"}, **{"in": "1h"})
        paused = machine.call("PATCH", path, {"paused": True, "note": "holidays"})
        assert (paused.status, paused.json["status"]) == (200, "paused")
        machine.kill()
        machine.start()
        assert machine.event("report")["paused"]["note"] == "holidays"
        assert len(machine.call("GET", f"{path}/preview?count=3").json["occurrences"]) == 3
        resumed = machine.call("PATCH", path, {"paused": False})
        assert (resumed.status, resumed.json["status"]) == (200, "scheduled")


def test_a_repeated_backfill_delivers_each_occurrence_once(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path) as machine:
        repeat = {"cron": "0 9 * * *", "tz": "Europe/Berlin"}
        machine.schedule(receiver.url("/ok"), {"n": 1}, id="report", key="k", repeat=repeat)
        asked = {"from": "2026-03-28T00:00:00Z", "until": "2026-03-30T23:00:00Z"}
        answers = [machine.call("POST", "/v1/tenants/shop/events/report/backfill", asked) for _ in range(2)]
        assert [(answer.status, answer.json["scheduled"]) for answer in answers] == [(200, 3), (200, 0)]
        ids = answers[0].json["ids"]
        assert ids == [
            "backfill:report@2026-03-28T08:00:00.000Z",
            "backfill:report@2026-03-29T07:00:00.000Z",
            "backfill:report@2026-03-30T07:00:00.000Z",
        ]
        until(lambda: len(receiver.received) == 3, "all rang")
        assert [each.id for each in receiver.received] == ids
        machine.until_status(ids[-1].replace(":", "%3A"), "delivered")


def test_a_preview_needs_no_event(tmp_path: Path) -> None:
    with Machine(tmp_path, "--gateways", "1") as machine:
        body = {"repeat": {"cron": "*/5 * * * *", "tz": "America/New_York"}, "count": 1_000}
        answer = machine.call("POST", "/v1/preview", body)
        assert (answer.status, len(answer.json["occurrences"]), answer.json["more"]) == (200, 1_000, True)
