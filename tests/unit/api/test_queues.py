"""Workers over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from everbell.http.message import HttpRequest
from tests.unit.api.api_caller import EVENTS, Answered, Caller, called

QUEUE = "/v1/tenants/shop/queues/work"


async def leased(caller: Caller, **fields: Any) -> list[dict[str, Any]]:
    answer = await caller.call("POST", f"{QUEUE}/lease", fields)
    assert answer.status == 200, answer.body
    events: list[dict[str, Any]] = answer.json["events"]
    return events


async def due(caller: Caller, *names: str, **fields: Any) -> None:
    for name in names:
        await caller.schedule(id=name, **{"in": 0, **fields})
    await asyncio.sleep(0.1)


async def status(caller: Caller, name: str) -> str:
    shown: str = (await caller.call("GET", f"{EVENTS}/{name}")).json["status"]
    return shown


def test_a_lease_has_all_that_a_worker_needs() -> None:
    async def test(caller: Caller) -> None:
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        fields = {"key": "k", "headers": {"x-a": "b"}, "tags": ["t"], "payload": {"n": 1}, "traceparent": trace}
        await due(caller, "one", **fields)
        (lease,) = await leased(caller, lease="5m")
        assert lease == {
            "lease": lease["lease"],
            "until": "2026-01-01T00:05:00.100Z",
            "id": "one",
            "occurrence": 1,
            "attempt": 1,
            "attempts_max": 10,
            "epoch": 1,
            "at": "2026-01-01T00:00:00.000Z",
            **fields,
        }
        assert await status(caller, "one") == "delivering"

    called(test)


def test_bytes_come_as_base64() -> None:
    async def test(caller: Caller) -> None:
        await due(caller, "one", payload_base64="AAEC/w==", content_type="image/png")
        (lease,) = await leased(caller)
        assert (lease["payload_base64"], lease["content_type"]) == ("AAEC/w==", "image/png")
        assert "payload" not in lease

    called(test)


def test_an_empty_body_asks_for_one() -> None:
    async def test(caller: Caller) -> None:
        await due(caller, "one", "two")
        answer = await caller.call("POST", f"{QUEUE}/lease")
        assert len(answer.json["events"]) == 1
        assert len(await leased(caller, limit=10)) == 1
        assert await leased(caller, limit=10) == []

    called(test)


def test_acknowledging() -> None:
    async def test(caller: Caller) -> None:
        await due(caller, "one", "two")
        tokens = [lease["lease"] for lease in await leased(caller, limit=10)]
        answer = await caller.call("POST", f"{QUEUE}/ack", {"leases": [*tokens, tokens[0], "gone"]})
        assert (answer.status, answer.json) == (200, {"done": 2, "lost": ["gone"]})
        assert await status(caller, "one") == "delivered"
        again = await caller.call("POST", f"{QUEUE}/ack", {"leases": tokens})
        assert again.json == {"done": 0, "lost": tokens}

    called(test)


def test_another_queue_cannot_settle_it() -> None:
    async def test(caller: Caller) -> None:
        await due(caller, "one")
        token = (await leased(caller))[0]["lease"]
        for queue in ("/v1/tenants/shop/queues/other", "/v1/tenants/store/queues/work"):
            answer = await caller.call("POST", f"{queue}/ack", {"leases": [token]})
            assert answer.json == {"done": 0, "lost": [token]}

    called(test)


def test_failing() -> None:
    async def test(caller: Caller) -> None:
        await due(caller, "again", "never")
        tokens = {lease["id"]: lease["lease"] for lease in await leased(caller, limit=2)}
        failures = [
            {"lease": tokens["again"], "reason": "busy", "retry_after": "1h"},
            {"lease": tokens["never"], "reason": "no such user", "permanent": True},
            {"lease": "gone"},
        ]
        answer = await caller.call("POST", f"{QUEUE}/fail", {"leases": failures})
        assert (answer.status, answer.json) == (200, {"done": 2, "lost": ["gone"]})
        again = (await caller.call("GET", f"{EVENTS}/again")).json
        assert (again["status"], again["next_attempt_at"]) == ("retrying", "2026-01-01T01:00:00.100Z")
        assert again["attempts"][0]["reason"] == "busy"
        never = (await caller.call("GET", f"{EVENTS}/never")).json
        assert (never["status"], never["attempts"][0]["reason"]) == ("dead", "no such user")

    called(test)


def test_extending() -> None:
    async def test(caller: Caller) -> None:
        await due(caller, "one")
        token = (await leased(caller, lease="10s"))[0]["lease"]
        answer = await caller.call("POST", f"{QUEUE}/extend", {"leases": [token, token, "gone"], "lease": "1m"})
        assert (answer.status, answer.json) == (200, {"done": 1, "lost": ["gone"]})
        await asyncio.sleep(50)
        assert await status(caller, "one") == "delivering"
        await asyncio.sleep(15)
        assert await status(caller, "one") == "retrying"

    called(test)


@pytest.mark.parametrize("wait", ["50s", "PT50S", 50])
def test_a_long_poll_waits_for_the_first_event(wait: str | int) -> None:
    async def test(caller: Caller) -> None:
        polling = asyncio.ensure_future(leased(caller, wait=wait, limit=10))
        await asyncio.sleep(30)
        assert not polling.done()
        await caller.schedule(id="one", **{"in": "5s"})
        (lease,) = await polling
        assert lease["id"] == "one"
        assert caller.clock.now() - caller.clock.offset_ms < 36_000

    called(test)


def test_a_long_poll_ends_with_nothing() -> None:
    async def test(caller: Caller) -> None:
        assert await leased(caller, wait="7s") == []
        assert caller.clock.now() - caller.clock.offset_ms == pytest.approx(7_000, abs=50)

    called(test)


class Client:
    """The other end of a connection, as a request sees it."""

    gone = False
    is_answering = False


def test_a_worker_that_left_ends_its_poll_and_takes_no_event() -> None:
    async def test(caller: Caller) -> None:
        client = Client()
        body = msgspec.json.encode({"wait": "60s"})
        polling = asyncio.ensure_future(caller.send(HttpRequest("POST", f"{QUEUE}/lease", {}, body, "", client)))
        await asyncio.sleep(5)
        client.gone = True
        answer: Answered = await polling
        assert answer.json == {"events": []}
        assert caller.clock.now() - caller.clock.offset_ms < 10_000

    called(test)


def test_events_leased_for_a_worker_that_left_are_released_at_once() -> None:
    async def test(caller: Caller) -> None:
        client = Client()
        body = msgspec.json.encode({"wait": "60s", "lease": "1h"})
        polling = asyncio.ensure_future(caller.send(HttpRequest("POST", f"{QUEUE}/lease", {}, body, "", client)))
        await asyncio.sleep(0.5)
        client.gone = True
        await due(caller, "one")
        await polling
        (lease,) = await leased(caller, wait="30s")
        assert (lease["id"], lease["attempt"]) == ("one", 1)

    called(test)


def test_a_stopped_engine_says_so() -> None:
    async def test(caller: Caller) -> None:
        polling = asyncio.ensure_future(caller.call("POST", f"{QUEUE}/lease", {"wait": "60s"}))
        await asyncio.sleep(1)
        await caller.engine.stop()
        assert (await polling).status == 503

    called(test)


WORKER = '{"name": "w1", "host": "app-3", "version": "1.0", "queues": ["work", "mail"]}'


async def queues(caller: Caller) -> list[dict[str, Any]]:
    answer = await caller.call("GET", "/v1/tenants/shop/queues")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json["queues"]
    return found


def test_queues_are_listed_with_the_workers_that_told_their_names() -> None:
    async def test(caller: Caller) -> None:
        assert await queues(caller) == []
        await due(caller, "one", "two", "three")
        await caller.call("POST", f"{QUEUE}/lease", {"limit": 1}, everbell_worker=WORKER)
        (queue,) = await queues(caller)
        (worker,) = queue["workers"]
        assert worker == {
            "name": "w1",
            "host": "app-3",
            "version": "1.0",
            "queues": ["work", "mail"],
            "last_contact": "2026-01-01T00:00:00.100Z",
        }
        assert (queue["name"], queue["waiting"], queue["in_flight"]) == ("work", 2, 1)
        assert "stalled" not in queue

        await asyncio.sleep(61)
        (queue,) = await queues(caller)
        assert queue["stalled"] is True
        assert queue["workers"], "it is listed for some minutes, so that people see which one is missing"

    called(test)


def test_a_worker_that_extends_its_leases_is_alive() -> None:
    async def test(caller: Caller) -> None:
        await due(caller, "one", "two")
        (lease,) = await leased(caller, lease="5m")
        await asyncio.sleep(59)
        body = {"leases": [lease["lease"]], "lease": "5m"}
        await caller.call("POST", f"{QUEUE}/extend", body, everbell_worker=WORKER)
        await asyncio.sleep(59)
        (queue,) = await queues(caller)
        assert "stalled" not in queue
        assert [worker["name"] for worker in queue["workers"]] == ["w1"]

    called(test)


@pytest.mark.parametrize("text", ["mail-1", "{}", '{"name": ""}', '{"name": 1}', "[]"])
def test_a_header_that_names_no_worker_is_refused(text: str) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", f"{QUEUE}/lease", {}, everbell_worker=text)
        assert answer.status == 422
        assert answer.json["field"] == "everbell-worker"

    called(test)


def test_a_newer_worker_may_tell_more() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", f"{QUEUE}/lease", {}, everbell_worker='{"name": "w", "colour": "red"}')
        assert answer.status == 200

    called(test)
