"""How many events are due ahead, and how many are overdue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from everbell.channels.port import Delivery
from everbell.engine import forecast
from tests.turns import turns_beside
from tests.unit.api.api_caller import Caller, called

ALL = "/v1/forecast"
SHOP = "/v1/tenants/shop/forecast"


class Silent:
    """A channel that starts nothing."""

    holds = False
    together = 1

    def start(self, deliveries: Sequence[Delivery]) -> None:
        """Leave the events as they are."""

    async def close(self) -> None:
        """There is nothing to close."""


async def due(caller: Caller, target: str) -> list[int]:
    answer = await caller.call("GET", target)
    assert answer.status == 200, answer.body
    return [span["due"] for span in answer.json["spans"]]


def test_events_are_counted_by_the_minute_and_by_the_hour() -> None:
    async def test(caller: Caller) -> None:
        await asyncio.sleep(30)
        for after in ("1s", "29s", "30s", "89s", "90s", "1h", "3h"):
            await caller.schedule(**{"in": after})
        await caller.schedule("store", **{"in": "30s"})
        assert await due(caller, f"{SHOP}?count=3") == [2, 2, 1]
        assert await due(caller, f"{ALL}?count=3") == [2, 3, 1]
        assert await due(caller, f"{SHOP}?per=hour&count=4") == [5, 1, 0, 1]
        answer = (await caller.call("GET", f"{SHOP}?count=2")).json
        assert (answer["from"], answer["per"], answer["overdue"]) == ("2026-01-01T00:00:00.000Z", "minute", 0)
        assert [span["at"] for span in answer["spans"]] == ["2026-01-01T00:00:00.000Z", "2026-01-01T00:01:00.000Z"]
        assert "oldest_overdue" not in answer
        assert "known_until" not in answer

    called(test)


def test_every_occurrence_counts() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule("shop", **{"in": "30s", "repeat": {"every": "30s", "count": 5}})
        await caller.schedule("store", **{"in": "30s", "repeat": {"every": "1m"}})
        assert await due(caller, f"{SHOP}?count=4") == [1, 2, 2, 0]
        assert await due(caller, f"{ALL}?count=2") == [2, 3]

    called(test)


def test_an_event_that_is_due_and_not_delivered_is_overdue() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule("shop", **{"in": 0})
        for _ in range(3):
            await caller.schedule(key="k", **{"in": "5s", "to": "https://nobody.example/"})
        await asyncio.sleep(65)
        answer = (await caller.call("GET", SHOP)).json
        assert (answer["overdue"], answer["oldest_overdue"]) == (3, "1m5s")
        assert sum(span["due"] for span in answer["spans"]) == 0
        assert (await caller.call("GET", "/v1/tenants/store/forecast")).json["overdue"] == 0

    called(test)


def test_a_forecast_says_where_it_stopped_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "ROWS_MAX", 20)
    monkeypatch.setattr(forecast, "_PAGE", 2)

    async def test(caller: Caller) -> None:
        for minute in range(40):
            await caller.schedule(**{"in": f"{minute}m30s"}, id=f"e{minute}")
        answer = (await caller.call("GET", SHOP)).json
        counts = [span["due"] for span in answer["spans"]]
        assert 20 <= sum(counts) < 40
        known = [span["due"] for span in answer["spans"] if span["at"] < answer["known_until"][:16]]
        assert 5 < len(known) < 40
        assert set(known) == {1}

    called(test)


@pytest.mark.parametrize("query", ["per=day", "count=0", "count=1441", "tenant=shop"])
def test_bad_questions(query: str) -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("GET", f"{ALL}?{query}")).status == 422

    called(test)


def test_other_tasks_run_while_many_occurrences_are_counted() -> None:
    async def test(caller: Caller) -> None:
        for second in range(4):
            await caller.schedule(repeat={"cron": f"{second}-59 * * * * *"}, **{"in": "1s"})
        spans, turns = await turns_beside(due(caller, f"{SHOP}?count=60"))
        assert sum(spans) > 13_000
        assert turns >= 13_000 // 250

    called(test)


def test_occurrences_of_the_past_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(caller: Caller) -> None:
        # Given an event that waits for a worker since 1970
        spec = {"at": "1970-01-01T00:00:00Z", "to": "queue:work", "repeat": {"cron": "* * * * * *"}}
        assert (await caller.call("POST", "/v1/tenants/shop/events", spec)).status == 201
        assert (await due(caller, f"{SHOP}?count=2"))[1] >= 60

    monkeypatch.setattr(forecast, "ROWS_MAX", 1_000)
    called(test, {"queue": Silent()})
