"""One event over HTTP, from its scheduling to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec
import pytest

from everbell.channels.handler import HandlerChannel
from everbell.core.occurrence import Occurrence
from everbell.core.request import Handlers
from everbell.engine.requests import Schedule
from everbell.engine.seen import DraftResult
from everbell.errors import Overloaded
from everbell.http.message import HttpRequest, HttpResponse
from tests.unit.api.api_caller import EVENTS, SOON, Answered, Caller, called

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_scheduling_answers_where_the_event_is() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", EVENTS, SOON, content_type="application/json")
        event_id = answer.json["id"]
        assert answer.status == 201
        assert answer.json == {
            "id": event_id,
            "at": "2026-01-01T01:00:00.000Z",
            "status": "scheduled",
            "version": 1,
        }
        assert answer.headers == {"location": f"{EVENTS}/{event_id}", "etag": '"1"'}
        seen = await caller.call("GET", answer.headers["location"])
        assert seen.status == 200
        assert seen.headers["etag"] == '"1"'

    called(test)


def test_everything_that_was_said_comes_back() -> None:
    said: dict[str, Any] = {
        "id": "order 17/ü",
        "at": "2026-02-01T12:00:00+02:00",
        "key": "order-17",
        "to": "https://shop.example/timeouts",
        "headers": {"X-Team": "orders"},
        "tags": ["checkout", "slow"],
        "repeat": {"every": "30s", "count": 6, "until": "2026-03-01T00:00:00Z"},
        "retry": {"max_attempts": 3, "backoff": 1.5, "max_backoff": "PT1M"},
        "expires": "2h",
        "traceparent": TRACE,
    }

    async def test(caller: Caller) -> None:
        # The payload has spaces and a number that would not survive decoding and encoding.
        body = msgspec.json.encode(said)[:-1] + b', "payload": {"sum" :  1.10, "big": 123456789012345678901234567890}}'
        answer = await caller.call("POST", EVENTS, body)
        assert answer.status == 201
        assert answer.headers["location"] == f"{EVENTS}/order%2017%2F%C3%BC"
        seen = await caller.call("GET", answer.headers["location"])
        assert b'"payload":{"sum" :  1.10, "big": 123456789012345678901234567890}' in seen.body
        shown = seen.json
        del shown["payload"]
        assert shown == {
            "id": "order 17/ü",
            "tenant": "shop",
            "at": "2026-02-01T10:00:00.000Z",
            "status": "scheduled",
            "version": 1,
            "to": "https://shop.example/timeouts",
            "occurrence": 1,
            "created_at": "2026-01-01T00:00:00.000Z",
            "attempt_count": 0,
            "key": "order-17",
            "tags": ["checkout", "slow"],
            "headers": {"x-team": "orders"},
            "retry": {"max_attempts": 3, "backoff": "1s500ms", "max_backoff": "1m"},
            "repeat": {"every": "30s", "count": 6, "until": "2026-03-01T00:00:00.000Z"},
            "counters": {"fired": 0, "missed": 0, "skipped": 0, "reasons": {}},
            "expires": "2h",
            "traceparent": TRACE,
            "why": {
                "code": "due-later",
                "sentence": "It is due at 2026-02-01T10:00:00.000Z.",
                "until": "2026-02-01T10:00:00.000Z",
            },
        }

    called(test)


def test_bytes_come_back_as_bytes() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="image", payload_base64="AAEC/w==", content_type="image/png")
        seen = (await caller.call("GET", f"{EVENTS}/image")).json
        assert (seen["payload_base64"], seen["content_type"]) == ("AAEC/w==", "image/png")
        assert "payload" not in seen

    called(test)


def test_a_tenant_may_have_a_target_of_its_own() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", "/v1/tenants/homely/events", {"in": 5})
        assert (await caller.call("GET", answer.headers["location"])).json["to"] == "queue:home"

    called(test)


def test_a_repeated_request_finds_the_event_of_the_first() -> None:
    async def test(caller: Caller) -> None:
        body = {**SOON, "id": "once", "payload": [1]}
        answers = [await caller.call("POST", EVENTS, body) for _ in range(2)]
        assert [answer.status for answer in answers] == [201, 200]
        assert answers[0].json == answers[1].json
        assert answers[0].headers == answers[1].headers
        other = await caller.call("POST", EVENTS, {**body, "payload": [2]})
        assert (other.status, other.json["type"]) == (409, "https://everbell.dev/problems/conflict")

    called(test)


def test_the_id_of_an_ended_event_is_not_offered_for_replacing() -> None:
    async def test(caller: Caller) -> None:
        await caller.call("PUT", f"{EVENTS}/one", SOON)
        await caller.call("DELETE", f"{EVENTS}/one")
        other = await caller.call("POST", EVENTS, {**SOON, "id": "one", "payload": "another"})
        assert other.status == 409
        assert "choose another id" in other.json["detail"]
        assert "PUT" not in other.json["detail"]

    called(test)


def test_repeated_requests_at_the_same_moment_make_one_event() -> None:
    async def test(caller: Caller) -> None:
        body = {**SOON, "id": "once"}
        answers = await asyncio.gather(*(caller.call("POST", EVENTS, body) for _ in range(8)))
        assert sorted(answer.status for answer in answers) == [200] * 7 + [201]

    called(test)


def test_requests_of_one_moment_are_answered_each_with_its_own() -> None:
    async def test(caller: Caller) -> None:
        asked = [("shop" if index % 2 else "store", f"event-{index}") for index in range(20)]
        calls = [caller.call("POST", f"/v1/tenants/{tenant}/events", {**SOON, "id": name}) for tenant, name in asked]
        answers = await asyncio.gather(*calls)
        assert [answer.headers["location"] for answer in answers] == [
            f"/v1/tenants/{tenant}/events/{name}" for tenant, name in asked
        ]

    called(test)


@pytest.mark.parametrize(
    ("header", "said", "kept"),
    [(TRACE, None, TRACE), (TRACE, TRACE.replace("4b", "aa"), TRACE.replace("4b", "aa")), ("nonsense", None, None)],
)
def test_the_trace_of_a_request_is_taken_over(header: str, said: str | None, kept: str | None) -> None:
    async def test(caller: Caller) -> None:
        body = {**SOON, "id": "traced", "traceparent": said}
        for method, target in (("POST", EVENTS), ("PUT", f"{EVENTS}/traced")):
            await caller.call(method, target, body, traceparent=header)
            assert (await caller.call("GET", f"{EVENTS}/traced")).json.get("traceparent") == kept

    called(test)


def test_put_creates_then_replaces() -> None:
    async def test(caller: Caller) -> None:
        made = await caller.call("PUT", f"{EVENTS}/a%2Fb", SOON)
        assert (made.status, made.json["id"], made.headers["location"]) == (201, "a/b", f"{EVENTS}/a%2Fb")
        replaced = await caller.call("PUT", f"{EVENTS}/a%2Fb", {"in": "2h", "to": "queue:other", "id": "a/b"})
        assert (replaced.status, replaced.json["to"], replaced.headers["etag"]) == (200, "queue:other", '"2"')
        assert "location" not in replaced.headers

    called(test)


def test_put_replaces_an_event_with_a_generated_id_but_creates_none() -> None:
    async def test(caller: Caller) -> None:
        made = await caller.schedule()
        replaced = await caller.call("PUT", f"{EVENTS}/{made}", {"in": "2h", "to": "queue:other"})
        assert (replaced.status, replaced.json["id"], replaced.json["version"]) == (200, made, 2)
        refused = await caller.call("PUT", f"{EVENTS}/ev_mine", SOON)
        assert (refused.status, refused.json["field"]) == (422, "id")
        await caller.call("DELETE", f"{EVENTS}/{made}")
        assert (await caller.call("PUT", f"{EVENTS}/{made}", SOON)).status == 409

    called(test)


def test_put_does_not_bring_back_an_event_that_ended() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one")
        await caller.call("DELETE", f"{EVENTS}/one")
        assert (await caller.call("PUT", f"{EVENTS}/one", SOON)).status == 409
        assert (await caller.call("PUT", f"{EVENTS}/one", SOON, if_match="*")).status == 409

    called(test)


def test_a_change_names_the_version_it_changes() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one")
        one = f"{EVENTS}/one"
        assert (await caller.call("PATCH", one, {"in": "2h"}, if_match='"1"')).headers["etag"] == '"2"'
        for method, body in (("PATCH", {"in": "3h"}), ("PUT", SOON), ("DELETE", b"")):
            answer = await caller.call(method, one, body, if_match='"1"')
            assert (answer.status, answer.json["type"]) == (412, "https://everbell.dev/problems/version-mismatch")
        assert (await caller.call("PUT", one, SOON, if_match='"2"')).headers["etag"] == '"3"'
        assert (await caller.call("PATCH", one, {"tags": ["x"]}, if_match="*")).headers["etag"] == '"4"'
        assert (await caller.call("DELETE", one, if_match='"4"')).json["status"] == "cancelled"

    called(test)


def test_a_snooze_moves_the_due_time_and_two_at_once_both_count() -> None:
    async def test(caller: Caller) -> None:
        await caller.call("POST", EVENTS, {**SOON, "id": "e"})
        snoozed = await caller.call("POST", f"{EVENTS}/e/snooze", {"by": "10m"})
        assert (snoozed.status, snoozed.json["at"]) == (200, "2026-01-01T01:10:00.000Z")
        await asyncio.gather(*(caller.call("POST", f"{EVENTS}/e/snooze", {"by": 60}) for _ in range(2)))
        assert (await caller.call("GET", f"{EVENTS}/e")).json["at"] == "2026-01-01T01:12:00.000Z"

    called(test)


@pytest.mark.parametrize("by", ["-10m", "0s", "soon", -5, "", None])
def test_a_snooze_needs_a_positive_duration(by: object) -> None:
    async def test(caller: Caller) -> None:
        await caller.call("POST", EVENTS, {**SOON, "id": "e"})
        refused = await caller.call("POST", f"{EVENTS}/e/snooze", {"by": by})
        assert (refused.status, refused.json["field"]) == (422, "by")
        assert (await caller.call("GET", f"{EVENTS}/e")).json["version"] == 1

    called(test)


def test_put_with_if_match_makes_nothing_new() -> None:
    async def test(caller: Caller) -> None:
        for condition in ("*", '"1"'):
            assert (await caller.call("PUT", f"{EVENTS}/none", SOON, if_match=condition)).status == 412
        assert (await caller.call("PUT", f"{EVENTS}/ev_none", SOON, if_match="*")).status == 412

    called(test)


@pytest.mark.parametrize(
    "condition", ['W/"1"', "1", '"1", "2"', '"one"', '""', '"0"', '"-1"', '"' + "9" * 30 + '"', ""]
)
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_condition_that_is_no_version_is_refused(method: str, condition: str) -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one")
        answer = await caller.call(method, f"{EVENTS}/one", SOON, if_match=condition)
        assert (answer.status, answer.json["field"]) == (400, "if-match")

    called(test)


def test_a_change_keeps_the_fields_that_it_does_not_name() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one", tags=["a"], payload={"n": 1}, expires="1h")
        answer = await caller.call("PATCH", f"{EVENTS}/one", {"at": "2026-01-02T00:00:00Z", "expires": None})
        assert answer.status == 200
        assert (answer.json["at"], answer.json["tags"], answer.json["payload"]) == (
            "2026-01-02T00:00:00.000Z",
            ["a"],
            {"n": 1},
        )
        assert "expires" not in answer.json

    called(test)


def test_a_cancelled_event_stays_visible_without_its_payload() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one", payload=1, key="k", tags=["t"])
        answer = await caller.call("DELETE", f"{EVENTS}/one")
        assert answer.status == 200
        assert answer.json == (await caller.call("GET", f"{EVENTS}/one")).json
        assert answer.json["finished_at"] == "2026-01-01T00:00:00.000Z"
        assert (answer.json["status"], answer.json["key"], answer.json["tags"]) == ("cancelled", "k", ["t"])
        assert "payload" not in answer.json
        for method, body in (("DELETE", b""), ("PATCH", {"in": 1})):
            assert (await caller.call(method, f"{EVENTS}/one", body)).status == 409

    called(test)


def test_an_absent_event_cannot_be_changed() -> None:
    async def test(caller: Caller) -> None:
        for method, target, body in (
            ("GET", "/none", b""),
            ("PATCH", "/none", {"in": 1}),
            ("DELETE", "/none", b""),
            ("POST", "/none/deliver", b""),
            ("POST", "/none/deliver?dry_run=true", b""),
            ("GET", "/ev_-Ohr3OP----------F--DAIaJiGCdz7a", b""),
        ):
            assert (await caller.call(method, EVENTS + target, body)).status == 404, (method, target)

    called(test)


def test_an_event_may_be_named_batch() -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("PUT", f"{EVENTS}/batch", SOON)).status == 201
        assert (await caller.call("GET", f"{EVENTS}/batch")).json["id"] == "batch"

    called(test)


def test_ringing_and_trying() -> None:
    got: list[Occurrence] = []
    channel = HandlerChannel()

    async def handle(occurrence: Occurrence) -> None:
        got.append(occurrence)
        if len(got) == 1:
            raise ValueError("not yet")

    channel.register("work", handle)

    async def test(caller: Caller) -> None:
        caller = Caller(caller.engine, caller.clock, allows_handlers=True)
        await caller.schedule(id="one", to="handler:work")
        trial = await caller.call("POST", f"{EVENTS}/one/deliver?dry_run=true")
        assert trial.status == 200
        outcome = trial.json["outcome"]
        assert (outcome["result"], outcome["reason"].partition(" [")[0]) == ("failed", "ValueError: not yet")
        assert (await caller.call("GET", f"{EVENTS}/one")).json["attempt_count"] == 0
        rung = await caller.call("POST", f"{EVENTS}/one/deliver")
        assert (rung.status, rung.json["next_attempt_at"]) == (200, "2026-01-01T00:00:00.000Z")
        await asyncio.sleep(1)
        done = (await caller.call("GET", f"{EVENTS}/one")).json
        assert done["status"] == "delivered"
        assert done["attempts"] == [
            {"number": 1, "started_at": "2026-01-01T00:00:00.000Z", "duration_ms": 0, "result": "delivered"}
        ]
        assert (await caller.call("POST", f"{EVENTS}/one/deliver")).status == 409
        assert (await caller.call("POST", f"{EVENTS}/one/deliver?dry_run=true")).status == 409

    called(test, {"handler": channel})


def test_a_server_without_handlers_takes_nothing_for_them() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one")
        body = {**SOON, "to": "handler:work"}
        for method, target in (("POST", EVENTS), ("PUT", f"{EVENTS}/two"), ("PATCH", f"{EVENTS}/one")):
            answer = await caller.call(method, target, {"to": "handler:work"} if method == "PATCH" else body)
            assert (answer.status, answer.json["field"]) == (422, "to")

    called(test)


class Failing:
    """An engine that cannot schedule."""

    def __init__(self, error: Exception, at_once: bool) -> None:
        self._error = error
        self._at_once = at_once

    def schedule(self, request: Schedule) -> Awaitable[Sequence[DraftResult]]:
        if self._at_once:
            raise self._error
        return self._fail()

    async def _fail(self) -> Sequence[DraftResult]:
        raise self._error


@pytest.mark.parametrize(
    ("error", "at_once", "status"),
    [
        (Overloaded("too much", 3), True, 503),
        (Overloaded("too much", 3), False, 503),
        (RuntimeError("a bug"), True, 500),
        (RuntimeError("a bug"), False, 500),
        (asyncio.CancelledError(), False, 504),
    ],
)
def test_when_scheduling_fails_every_caller_gets_the_error(error: Exception, at_once: bool, status: int) -> None:
    async def test(caller: Caller) -> None:
        handlers = Handlers(Schedule.by(Failing(error, at_once).schedule))
        failing = Caller(caller.engine, caller.clock, handlers.ask)
        answers = await asyncio.gather(*(failing.call("POST", EVENTS, SOON) for _ in range(3)))
        assert [answer.status for answer in answers] == [status] * 3
        assert "a bug" not in answers[0].body.decode()

    called(test)


def test_a_stopped_engine_says_so() -> None:
    async def test(caller: Caller) -> None:
        await caller.engine.stop()
        answer = await caller.call("POST", EVENTS, SOON)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json["type"] == "https://everbell.dev/problems/stopping"

    called(test)


def test_a_client_that_left_does_not_harm_the_others() -> None:
    async def test(caller: Caller) -> None:
        requests = [HttpRequest("POST", EVENTS, {}, msgspec.json.encode(SOON)) for _ in range(2)]
        left, stayed = (caller.api(request) for request in requests)
        assert isinstance(left, asyncio.Future)
        assert not isinstance(stayed, HttpResponse)
        left.cancel()
        assert Answered(await stayed).status == 201

    called(test)
