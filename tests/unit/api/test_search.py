"""Many events at a time: finding, cancelling, redriving."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from everbell.api.application import LARGE_AT_ONCE, Api
from everbell.core.health import Health
from everbell.http.message import LATER, HttpRequest, HttpResponse
from tests.unit.api.api_caller import EVENTS, TENANTS, Caller, called

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
        ("to=queue:", "abcd"),
        ("to=https://", ""),
        ("id_prefix=a", "a"),
        ("id_prefix=ab", ""),
        ("id_prefix=a&to=queue:work&key=k", "a"),
        ("status=delivering", ""),
        ("target=queue:work", "abcd"),
        ("target=queue:wor", ""),
        ("reason=x", ""),
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


@pytest.mark.parametrize("at", [EVENTS, DEAD])
def test_a_page_of_large_events_is_short_and_its_cursor_goes_on(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.stores.searching.FOUND_BYTES_MAX", 2_000)

    async def test(caller: Caller) -> None:
        where = NOWHERE if at == DEAD else {"in": "1h"}
        for number in range(7):
            await caller.schedule(id=f"e{number}", payload="x" * 900, **where)
        await asyncio.sleep(1)
        pages = []
        query = "limit=1000"
        while True:
            answer = await caller.call("GET", f"{at}?{query}")
            pages.append([event["id"] for event in answer.json["events"]])
            if "cursor" not in answer.json:
                break
            query = f"limit=1000&cursor={answer.json['cursor']}"
        assert [len(page) for page in pages] == [2, 2, 2, 1]
        assert sorted(name for page in pages for name in page) == [f"e{number}" for number in range(7)]

    called(test)


def test_few_pages_are_made_at_a_time() -> None:
    """Many clients that ask at the same moment would otherwise fill the memory, whether they read or not."""

    async def test(caller: Caller) -> None:
        making = most = 0
        ask = caller.engine.ask

        async def slowly(request: Any) -> Any:
            nonlocal making, most
            making += 1
            most = max(most, making)
            await asyncio.sleep(1)
            making -= 1
            return await ask(request)

        caller.api = Api(slowly, TENANTS, caller.clock, lambda: Health("ready"), lambda: "")
        answers = await asyncio.gather(*(caller.call("GET", EVENTS) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert most == LARGE_AT_ONCE

    called(test)


class Busy:
    """The other end of a connection that has answers to come."""

    gone = False
    is_answering = True


@pytest.mark.parametrize(
    ("method", "target", "waits"),
    [
        ("GET", EVENTS, True),
        ("HEAD", EVENTS, True),
        ("GET", DEAD, True),
        ("GET", f"{EVENTS}/a", False),
        ("DELETE", f"{EVENTS}?key=k", False),
    ],
)
def test_pages_of_one_connection_are_made_one_at_a_time(method: str, target: str, waits: bool) -> None:
    async def test(caller: Caller) -> None:
        answer = caller.api(HttpRequest(method, target, client=Busy()))
        assert (answer is LATER) is waits
        if not isinstance(answer, HttpResponse):
            await answer

    called(test)


def test_found_events_are_complete() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        (event,) = (await caller.call("GET", f"{EVENTS}?tag=t&key=k")).json["events"]
        whole = (await caller.call("GET", f"{EVENTS}/a")).json
        assert event == {name: value for name, value in whole.items() if name != "why"}, "`why` is for single reads"

    called(test)


@pytest.mark.parametrize(
    ("query", "cancelled", "left"), [("key=k", 2, "cd"), ("tag=t", 2, "bd"), ("key=k&tag=t", 1, "bcd")]
)
def test_cancelling_matching_events(query: str, cancelled: int, left: str) -> None:
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


def test_the_dead_are_grouped_by_target_and_reason_and_a_group_is_redriven() -> None:
    async def test(caller: Caller) -> None:
        await dead(caller)
        await caller.schedule(id="other", **{**NOWHERE, "to": "https://other.example/hook"})
        await asyncio.sleep(1)
        view = (await caller.call("GET", f"{DEAD}/groups")).json
        assert (view["counted"], view["more"]) == (5, False)
        assert [group["count"] for group in view["groups"]] == [4, 1]
        small = view["groups"][1]
        assert (small["target"], small["example"]) == ("https://other.example:443", "other")
        chosen = {"target": small["target"], "reason": small["reason"]}
        assert (await caller.call("GET", f"/v1/tenants/shop/count?status=dead&{urlencode(chosen)}")).json["count"] == 1
        assert (await caller.call("GET", f"{DEAD}/groups?tag=t")).json["counted"] == 1
        answer = await caller.call("POST", f"{DEAD}/redrive", {"all": True, **chosen, "reason": "another"})
        assert answer.json["redriven"] == 0
        answer = await caller.call("POST", f"{DEAD}/redrive", {"all": True, **chosen})
        assert answer.json["redriven"] == 1

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


def test_cancelling_page_by_page() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        cancelled, query = [], f"{EVENTS}?to=queue:&limit=3"
        while True:
            answer = (await caller.call("DELETE", query)).json
            cancelled.append(answer["cancelled"])
            if "cursor" not in answer:
                break
            query = f"{EVENTS}?to=queue:&limit=3&cursor={answer['cursor']}"
        assert sum(cancelled) == 4
        assert max(cancelled) <= 3
        assert await found(caller, "") == []

    called(test)


def test_a_bulk_cancel_without_a_filter_is_refused() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        for query in ("", "?limit=5", "?key=k&cursor=abc"):
            assert (await caller.call("DELETE", EVENTS + query)).status == 422
        assert await found(caller, "") == list("abcd")

    called(test)


async def due(caller: Caller) -> dict[str, str]:
    events = (await caller.call("GET", EVENTS)).json["events"]
    return {event["id"]: event["at"][11:19] for event in events}


@pytest.mark.parametrize(
    ("query", "body", "times"),
    [
        ("key=k", {"by": "90m"}, {"a": "02:30:00", "b": "03:30:00", "c": "03:00:00", "d": "04:00:00"}),
        ("tag=t", {"by": "-30m"}, {"a": "00:30:00", "b": "02:00:00", "c": "02:30:00", "d": "04:00:00"}),
        ("id_prefix=d", {"in": "10h"}, {"a": "01:00:00", "b": "02:00:00", "c": "03:00:00", "d": "10:00:00"}),
        (
            "from=2026-01-01T03:00:00Z",
            {"at": "2026-01-01T00:30:00Z"},
            {"a": "01:00:00", "b": "02:00:00", "c": "00:30:00", "d": "00:30:00"},
        ),
    ],
)
def test_rescheduling_matching_events(query: str, body: dict[str, str], times: dict[str, str]) -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        answer = await caller.call("PATCH", f"{EVENTS}?{query}", body)
        changed = 1 if query.startswith("id") else 2
        assert (answer.status, answer.json) == (200, {"rescheduled": changed, "skipped": 0, "errors": []})
        assert await due(caller) == times

    called(test)


def test_rescheduling_moves_no_event_twice_though_it_moves_ahead_of_the_search() -> None:
    async def test(caller: Caller) -> None:
        for number in range(1_200):
            await caller.schedule(id=f"e{number:04}", tags=["t"], **{"in": f"{number + 1}s"})
        answer = await caller.call("PATCH", f"{EVENTS}?tag=t", {"by": "10s"})
        assert answer.json["rescheduled"] == 1_200
        cursor, versions = "", []
        while True:
            page = (await caller.call("GET", f"{EVENTS}?limit=1000{cursor}")).json
            versions += [event["version"] for event in page["events"]]
            if "cursor" not in page:
                break
            cursor = f"&cursor={page['cursor']}"
        assert versions == [2] * 1_200

    called(test)


def test_rescheduling_by_name_and_version_can_be_repeated() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        body = {"by": "1h", "events": [{"id": "a", "version": 1}, {"id": "b"}, {"id": "none"}]}
        answer = (await caller.call("PATCH", EVENTS, body)).json
        assert (answer["rescheduled"], answer["skipped"]) == (2, 1)
        assert [(error["id"], error["status"]) for error in answer["errors"]] == [("none", 404)]
        again = (await caller.call("PATCH", EVENTS, body)).json
        assert [(error["id"], error["status"]) for error in again["errors"]] == [("a", 412), ("none", 404)]
        assert (await due(caller))["a"] == "02:00:00"
        assert (await due(caller))["b"] == "04:00:00"

    called(test)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", {"by": "1h"}),
        ("?key=k", {}),
        ("?key=k", {"by": "1h", "in": "1h"}),
        ("?key=k", {"by": "soon"}),
        ("?key=k", {"by": "0s"}),
        ("?key=k", {"by": "1h", "events": [{"id": "a"}]}),
        ("", {"by": "1h", "events": []}),
    ],
)
def test_rescheduling_needs_one_time_and_one_choice(query: str, body: dict[str, Any]) -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        assert (await caller.call("PATCH", EVENTS + query, body)).status == 422
        assert (await due(caller))["a"] == "01:00:00"

    called(test)


def test_one_event_is_moved_by_a_while() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        assert (await caller.call("PATCH", f"{EVENTS}/a", {"by": "-10m"})).json["at"] == "2026-01-01T00:50:00.000Z"
        assert (await caller.call("PATCH", f"{EVENTS}/a", {"by": "-100d"})).status == 200
        assert (await caller.call("PATCH", f"{EVENTS}/a", {"by": "-36500d"})).status == 409

    called(test)


def test_redriving_at_a_rate_spreads_the_attempts() -> None:
    async def test(caller: Caller) -> None:
        await dead(caller)
        now = caller.clock.now()
        answer = await caller.call("POST", f"{DEAD}/redrive", {"all": True, "rate": 0.5})
        assert answer.json == {"redriven": 4, "errors": []}
        rung = []
        for _ in range(4):
            await asyncio.sleep(0.1)
            rung.append(len(await found(caller, "", DEAD)))
            await asyncio.sleep(1.9)
        assert rung == [1, 2, 3, 4]
        assert caller.clock.now() - now >= 6_000

    called(test)


@pytest.mark.parametrize("rate", [0, -1, "fast"])
def test_a_rate_is_a_rate(rate: Any) -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("POST", f"{DEAD}/redrive", {"all": True, "rate": rate})).status == 422

    called(test)


@pytest.mark.parametrize(("query", "discarded"), [("", 4), ("?tag=t", 1), ("?id_prefix=a&limit=1", 1), ("?key=k", 0)])
def test_discarding_the_dead(query: str, discarded: int) -> None:
    async def test(caller: Caller) -> None:
        await dead(caller)
        await caller.schedule(id="alive", tags=["t"])
        answer = await caller.call("DELETE", DEAD + query)
        assert (answer.status, answer.json["cancelled"]) == (200, discarded)
        assert len(await found(caller, "", DEAD)) == 4 - discarded
        assert await found(caller, "") == ["alive"]

    called(test)


def test_finding_by_attempts_and_recurrence() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="again", repeat={"every": "1h"})
        await dead(caller)
        gone = await found(caller, "", DEAD)
        assert gone
        assert await found(caller, "repeats=true") == ["again"]
        assert await found(caller, "repeats=false") == ["again"]
        assert await found(caller, "attempts=1") == []
        assert await found(caller, "attempts=1&status=dead") == gone
        assert await found(caller, "attempts=1", DEAD) == gone
        assert await found(caller, "attempts=99", DEAD) == []

    called(test)


def test_counting() -> None:
    async def test(caller: Caller) -> None:
        await some(caller)
        await caller.schedule(id="again", repeat={"every": "1h"})
        for query, count in (
            ("", 5),
            ("key=k", 2),
            ("repeats=true", 1),
            ("status=dead", 0),
            ("tag=t&until=2030-01-01T00:00:00Z", 2),
        ):
            answer = await caller.call("GET", f"/v1/tenants/shop/count?{query}")
            assert answer.json == {"count": count, "more": False}, query
        assert (await caller.call("GET", "/v1/tenants/shop/count?limit=5")).status == 422

    called(test)


def test_a_policy_hides_payloads_and_headers_in_every_answer() -> None:
    async def test(caller: Caller) -> None:
        events = "/v1/tenants/private/events"
        fields = {"payload": "secret", "headers": {"x-secret": "secret"}, "key": "k"}
        await caller.schedule("private", id="json", **{"in": "1h", **fields})
        await caller.schedule("private", id="due", **{"in": 0, **fields})
        bare = {"payload_base64": "c2VjcmV0", "content_type": "text/plain"}
        await caller.schedule("private", id="bytes", **{"in": "1h", **bare})
        await asyncio.sleep(1)
        leased = await caller.call("POST", "/v1/tenants/private/queues/work/lease", {"limit": 1})
        (lease,) = leased.json["events"]
        assert (lease["payload"], lease["headers"]) == ("secret", {"x-secret": "secret"})
        answers = [
            await caller.call("GET", f"{events}/json"),
            await caller.call("GET", f"{events}/bytes"),
            await caller.call("GET", events),
            await caller.call("GET", "/v1/tenants/private/keys/k"),
            await caller.call("PATCH", f"{events}/json", {"in": "2h"}),
            await caller.call("PUT", f"{events}/json", {"in": "2h", **fields}),
            await caller.call("POST", f"{events}/json/snooze", {"by": "1h"}),
            await caller.call("POST", f"{events}/json/deliver"),
        ]
        for answer in answers:
            assert answer.status == 200
            assert b"secret" not in answer.body
            assert b"c2VjcmV0" not in answer.body

    called(test)
