"""`Idempotency-Key`: a repeated request makes one event, and the same key with another body is refused."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.edge.idempotency import HEADER, KEY_LENGTH_MAX, KEY_PATTERN, idempotent_id
from everbell.errors import MalformedInput
from everbell.http.message import HttpRequest
from tests.unit.api.api_caller import EVENTS, SOON, Caller, called

BATCH = [{**SOON, "payload": 1}, {**SOON, "payload": 2, "id": "mine"}, {**SOON, "payload": 3}]


async def pending(caller: Caller) -> int:
    return len((await caller.call("GET", EVENTS)).json["events"])


def test_a_repeated_request_finds_the_event_of_the_first() -> None:
    async def test(caller: Caller) -> None:
        body = {**SOON, "payload": {"order": 17}}
        first = await caller.call("POST", EVENTS, body, idempotency_key='"key 1"')
        again = await caller.call("POST", EVENTS, body, idempotency_key='"key 1"')
        other = await caller.call("POST", EVENTS, body, idempotency_key="key-2")
        assert (first.status, again.status, other.status) == (201, 200, 201)
        assert first.json["id"] == again.json["id"] != other.json["id"]
        assert await pending(caller) == 2

    called(test)


def test_a_malformed_key_is_refused_also_beside_an_id() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", EVENTS, {**SOON, "id": "mine"}, idempotency_key="k" * (KEY_LENGTH_MAX + 1))
        assert (answer.status, answer.json["field"]) == (400, "idempotency-key")
        assert await pending(caller) == 0

    called(test)


def test_quotes_do_not_matter_and_tenants_do_not_share_keys() -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("POST", EVENTS, SOON, idempotency_key="k")).status == 201
        assert (await caller.call("POST", EVENTS, SOON, idempotency_key='"k"')).status == 200
        assert (await caller.call("POST", "/v1/tenants/store/events", SOON, idempotency_key="k")).status == 201

    called(test)


def test_another_body_is_refused_also_after_the_event_ended() -> None:
    async def test(caller: Caller) -> None:
        first = await caller.call("POST", EVENTS, SOON, idempotency_key="k")
        for _ in range(2):
            refused = await caller.call("POST", EVENTS, {**SOON, "payload": 2}, idempotency_key="k")
            assert (refused.status, refused.json["field"]) == (422, "idempotency-key")
            assert (await caller.call("POST", EVENTS, SOON, idempotency_key="k")).status == 200
            await caller.call("DELETE", f"{EVENTS}/{first.json['id']}")

    called(test)


def test_an_id_of_ones_own_goes_before_the_key() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", EVENTS, {**SOON, "id": "mine"}, idempotency_key="k")
        assert answer.json["id"] == "mine"
        conflict = await caller.call("POST", EVENTS, {**SOON, "id": "mine", "payload": 2}, idempotency_key="k2")
        assert conflict.status == 409

    called(test)


def test_requests_at_the_same_time_make_one_event() -> None:
    async def test(caller: Caller) -> None:
        calls = [caller.call("POST", EVENTS, SOON, idempotency_key="k") for _ in range(10)]
        answers = await asyncio.gather(*calls)
        assert sorted(answer.status for answer in answers) == [200] * 9 + [201]
        assert await pending(caller) == 1

    called(test)


def test_a_repeated_batch_makes_nothing_twice() -> None:
    async def test(caller: Caller) -> None:
        first = await caller.call("POST", f"{EVENTS}/batch", BATCH, idempotency_key="k")
        again = await caller.call("POST", f"{EVENTS}/batch", BATCH, idempotency_key="k")
        assert (first.status, again.status) == (201, 201)
        assert first.json == again.json
        assert first.json["ids"][1] == "mine"
        assert await pending(caller) == 3
        another = await caller.call("POST", f"{EVENTS}/batch", BATCH, idempotency_key="k2")
        assert another.json["ids"][1] == "mine"
        assert await pending(caller) == 5

    called(test)


def test_another_batch_with_the_same_key_is_refused_where_it_differs() -> None:
    async def test(caller: Caller) -> None:
        await caller.call("POST", f"{EVENTS}/batch", BATCH, idempotency_key="k")
        changed: list[dict[str, Any]] = [{**SOON, "payload": 9}, {**SOON, "payload": 9, "id": "mine"}, BATCH[2]]
        answer = await caller.call("POST", f"{EVENTS}/batch", changed, idempotency_key="k")
        assert answer.status == 207
        errors = [(error["index"], error["status"]) for error in answer.json["errors"]]
        assert errors == [(0, 422), (1, 409)]
        assert answer.json["errors"][0]["field"] == "idempotency-key"
        assert await pending(caller) == 3

    called(test)


@pytest.mark.parametrize("key", ["", "a b", '"', '""', "x" * 256, "\xe4", '"a"b"'])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("POST", EVENTS, SOON, idempotency_key=key)).status == 400
        assert (await caller.call("POST", f"{EVENTS}/batch", BATCH, idempotency_key=key)).status == 400
        assert await pending(caller) == 0

    called(test)


@given(st.from_regex(re.compile(r'"?[ -~]{0,12}"?', re.ASCII), fullmatch=True) | st.from_regex(KEY_PATTERN))
def test_a_key_is_taken_as_the_document_says(key: str) -> None:
    said = re.search(KEY_PATTERN, key) is not None and len(key) <= KEY_LENGTH_MAX
    try:
        idempotent_id(HttpRequest("POST", "/", {HEADER: key}))
        taken = True
    except MalformedInput:
        taken = False
    assert taken == (said and "\n" not in key)
