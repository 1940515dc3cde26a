"""Many events at a time: finding, cancelling, redriving."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.server.api_caller import EVENTS, Caller, called

DEAD = "/v1/tenants/shop/dead"
NOWHERE: dict[str, Any] = {"in": 0, "to": "https://nobody.example/"}


async def found(caller: Caller, query: str, at: str = EVENTS) -> list[str]:
    answer = await caller.call("GET", f"{at}?{query}")
    assert answer.status == 200, answer.body
    return [event["id"] for event in answer.json["events"]]


async def some(caller: Caller) -> None:
    await caller.schedule(id="a", key="k", tags=["t"], **{"in": "1h"})
    await caller.schedule(id="b", key="k", **{"in": "2h"})
    await caller.schedule(id="c", tags=["t", "null"], **{"in": "3h"})
    await caller.schedule(id="d", key="null", **{"in": "4h"})
    await caller.schedule("store", id="a", key="k")


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", "abcd"),
        ("key=k", "ab"),
        ("tag=t", "ac"),
        ("key=k&tag=t", "a"),
        ("key=null", "d"),
        ("tag=null", "c"),
        ("key=other", ""),
        ("from=2026-01-01T02:00:00Z", "bcd"),
        ("until=2026-01-01T02:00:00Z", "ab"),
        ("from=2026-01-01T03:30:00%2B01:00&until=2026-01-01T03:00:00Z", "c"),
        ("status=scheduled&limit=2", "ab"),
        ("status=delivered", ""),
        ("status=delivering", ""),
    ],
)
def test_finding(query: str, ids: str) -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        assert await found(caller, query) == list(ids)

    called(test)


def test_page_by_page() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        seen: list[str] = []
        query = "limit=1"
        while True:
            answer = (await caller.call("GET", f"{EVENTS}?{query}")).json
            seen += [event["id"] for event in answer["events"]]
            if "cursor" not in answer:
                break
            query = f"limit=1&cursor={answer['cursor']}"
        assert seen == list("abcd")

    called(test)


def test_what_is_found_is_whole() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        (event,) = (await caller.call("GET", f"{EVENTS}?tag=t&key=k")).json["events"]
        assert event == (await caller.call("GET", f"{EVENTS}/a")).json

    called(test)


@pytest.mark.parametrize(
    ("query", "cancelled", "left"), [("key=k", 2, "cd"), ("tag=t", 2, "bd"), ("key=k&tag=t", 1, "bcd")]
)
def test_cancelling_what_matches(query: str, cancelled: int, left: str) -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        answer = await caller.call("DELETE", f"{EVENTS}?{query}")
        assert (answer.status, answer.json) == (200, {"cancelled": cancelled})
        assert await found(caller, "") == list(left)
        assert await found(caller, "", "/v1/tenants/store/events") == ["a"]
        assert len(await found(caller, "status=cancelled")) == cancelled

    called(test)


async def dead(caller: Caller) -> None:
    for name in "abc":
        await caller.schedule(id=name, **NOWHERE)
    await caller.schedule(id="tagged", tags=["t"], **NOWHERE)
    await asyncio.sleep(1)


def test_the_dead_tell_why() -> None:
    async def test(caller: Caller) -> None:
        await dead(caller)
        assert sorted(await found(caller, "", DEAD)) == ["a", "b", "c", "tagged"]
        assert await found(caller, "tag=t", DEAD) == ["tagged"]
        assert await found(caller, "") == []
        event = (await caller.call("GET", f"{DEAD}?limit=1")).json["events"][0]
        assert event["status"] == "dead"
        assert "nothing here delivers" in event["reason"]
        assert event["attempts"][0]["result"] == "refused"
        assert "next_attempt_at" not in event

    called(test)


def test_redriving_by_id_says_which_could_not_be() -> None:
    async def test(caller: Caller) -> None:
        await dead(caller)
        await caller.schedule(id="alive")
        body = {"ids": ["a", "none", "b", "alive", "a"]}
        answer = await caller.call("POST", f"{DEAD}/redrive", body)
        assert answer.status == 200
        assert answer.json["redriven"] == 2
        assert [(error["id"], error["status"]) for error in answer.json["errors"]] == [("none", 404), ("alive", 409)]

    called(test)


@pytest.mark.parametrize(("fields", "redriven"), [({}, 4), ({"tag": "t"}, 1), ({"key": "none"}, 0)])
def test_redriving_all_that_match(fields: dict[str, str], redriven: int) -> None:
    async def test(caller: Caller) -> None:
        await dead(caller)
        answer = await caller.call("POST", f"{DEAD}/redrive", {"all": True, **fields})
        assert (answer.status, answer.json) == (200, {"redriven": redriven, "errors": []})

    called(test)


def test_redriving_in_a_stopped_engine_is_no_success() -> None:
    async def test(caller: Caller) -> None:
        await dead(caller)
        await caller.engine.stop()
        assert (await caller.call("POST", f"{DEAD}/redrive", {"ids": ["a"]})).status == 503

    called(test)
