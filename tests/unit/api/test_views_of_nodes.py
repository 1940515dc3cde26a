"""Targets and history over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everbell.engine.history import KEPT
from tests.unit.api.api_caller import Caller, called

NOW: dict[str, Any] = {"in": 0, "to": "queue:work"}
SOON: dict[str, Any] = {"in": "1s", "to": "queue:work"}


def test_targets_are_listed() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one", **NOW)
        await asyncio.sleep(2)
        answer = await caller.call("GET", "/v1/tenants/shop/targets")
        assert answer.json == {
            "targets": [
                {"target": "queue:work", "waiting": 1, "in_flight": 0, "last_minute": {}, "oldest_wait_ms": 2_000}
            ]
        }
        assert (await caller.call("GET", "/v1/tenants/other/targets")).json == {"targets": []}

    called(test)


def test_the_recent_past_is_shown_by_tenant_and_for_all() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one", **SOON)
        await asyncio.sleep(25)
        for path in ("/v1/tenants/shop/history", "/v1/history", "/v1/history?span=minutes"):
            past = (await caller.call("GET", path)).json
            assert past["step_ms"] == 10_000
            assert [sample["scheduled"] for sample in past["samples"]] == [1, 0]
            assert past["samples"][-1]["waiting"] == 1
            assert past["now"] == {
                "waiting": 1,
                "in_flight": 0,
                "oldest_wait_ms": 24_000,
                "pending": 1,
                "dead_events": 0,
            }
        hours = (await caller.call("GET", "/v1/history?span=hours")).json
        assert (hours["step_ms"], hours["samples"]) == (300_000, [])

    called(test)


def test_a_sample_has_the_lateness_of_first_attempts() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one", **NOW)
        await asyncio.sleep(1.5)
        await caller.call("POST", "/v1/tenants/shop/queues/work/lease", {})
        await asyncio.sleep(10)
        (sample,) = (await caller.call("GET", "/v1/tenants/shop/history")).json["samples"]
        assert (sample["started"], sample["late_p50_ms"], sample["late_p99_ms"]) == (1, 2_000, 2_000)

    called(test)


@pytest.mark.parametrize("query", ["span=days", "spam=hours"])
def test_another_span_is_refused(query: str) -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("GET", f"/v1/history?{query}")).status == 422

    called(test)


def test_the_ring_covers_what_the_documentation_says() -> None:
    assert KEPT == {"minutes": 90, "hours": 288}


def test_an_unfinished_event_says_why_and_a_finished_one_does_not() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one", **NOW)
        path = "/v1/tenants/shop/events/one"
        assert (await caller.call("GET", path)).json["why"] == {
            "code": "no-worker",
            "sentence": "No worker has called for the queue work since its node started.",
            "queue": "work",
        }
        await caller.call("DELETE", path)
        assert "why" not in (await caller.call("GET", path)).json
        (event,) = (await caller.call("GET", "/v1/tenants/shop/events?status=cancelled")).json["events"]
        assert "why" not in event

    called(test)
