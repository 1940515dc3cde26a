"""Keys over HTTP: made, shown once, listed, revoked."""

from __future__ import annotations

import asyncio

import pytest

import everbell.api.access_keys
from tests.unit.api.keys_stage import KeysStage, guarded

KEYS = "/v1/keys"
OPERATOR = {"tenant": "*", "scopes": ["admin"], "note": "ops"}
JSON = {"content_type": "application/json"}


def test_from_the_first_key_to_the_last() -> None:
    async def scene(stage: KeysStage) -> None:
        made = await stage.call("POST", KEYS, OPERATOR, **JSON)
        assert made.status == 201
        assert made.headers["cache-control"] == "no-store"
        operator = made.json["key"]
        assert (await stage.call("GET", KEYS)).status == 401, "from the first key on, keys are needed"

        spec = {"tenant": "shop", "scopes": ["read", "schedule", "read"], "note": "orders"}
        shop = (await stage.call("POST", KEYS, spec, operator, **JSON)).json
        assert (shop["tenant"], shop["scopes"], shop["note"]) == ("shop", ["read", "schedule"], "orders")
        events = "/v1/tenants/shop/events"
        assert (await stage.call("GET", events, key=shop["key"])).status == 200

        listed = await stage.call("GET", KEYS, key=operator)
        assert [key["id"] for key in listed.json["keys"]] == [made.json["id"], shop["id"]]
        for text in (operator, shop["key"]):
            assert text.rpartition("_")[2].encode() not in listed.body, "no secret is shown again"
        assert b"digest" not in listed.body

        revoked = await stage.call("DELETE", f"{KEYS}/{shop['id']}", key=operator)
        assert revoked.status == 200
        assert "revoked_at" in revoked.json
        assert (await stage.call("GET", events, key=shop["key"])).status == 401
        again = await stage.call("DELETE", f"{KEYS}/{shop['id']}", key=operator)
        assert again.json == revoked.json, "revoking twice is revoking once"

    guarded(scene)


@pytest.mark.parametrize("spec", [{"tenant": "shop", "scopes": ["admin"]}, {"tenant": "*", "scopes": ["read"]}])
def test_the_first_key_is_an_operator_s(spec: dict[str, object]) -> None:
    async def scene(stage: KeysStage) -> None:
        answer = await stage.call("POST", KEYS, spec, **JSON)
        assert answer.status == 409
        assert "operator" in answer.json["detail"]
        assert (await stage.call("GET", KEYS)).json == {"keys": []}

    guarded(scene)


def test_the_last_operator_cannot_be_locked_out() -> None:
    async def scene(stage: KeysStage) -> None:
        first = (await stage.call("POST", KEYS, OPERATOR, **JSON)).json
        target = f"{KEYS}/{first['id']}"
        assert (await stage.call("DELETE", target, key=first["key"])).status == 409
        second = (await stage.call("POST", KEYS, OPERATOR, first["key"], **JSON)).json
        assert (await stage.call("DELETE", target, key=second["key"])).status == 200
        assert (await stage.call("DELETE", f"{KEYS}/{second['id']}", key=second["key"])).status == 409

    guarded(scene)


def test_the_last_two_operators_cannot_be_locked_out_at_once() -> None:
    async def scene(stage: KeysStage) -> None:
        first = (await stage.call("POST", KEYS, OPERATOR, **JSON)).json
        second = (await stage.call("POST", KEYS, OPERATOR, first["key"], **JSON)).json
        answers = await asyncio.gather(
            stage.call("DELETE", f"{KEYS}/{second['id']}", key=first["key"]),
            stage.call("DELETE", f"{KEYS}/{first['id']}", key=second["key"]),
        )
        assert [answer.status for answer in answers] == [200, 409]
        assert (await stage.call("GET", KEYS, key=first["key"])).status == 200

    guarded(scene)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"tenant": "shop"},
        {"tenant": "shop", "scopes": []},
        {"tenant": "shop", "scopes": ["root"]},
        {"tenant": "a/b", "scopes": ["read"]},
        {"tenant": "shop", "scopes": ["read"], "note": "x" * 201},
        {"tenant": "shop", "scopes": ["read"], "note": "two\nlines"},
        {"tenant": "shop", "scopes": ["read"], "key": "evk_mine"},
    ],
)
def test_a_key_that_makes_no_sense_is_refused(spec: dict[str, object]) -> None:
    async def scene(stage: KeysStage) -> None:
        operator = await stage.key("*", ["admin"])
        assert (await stage.call("POST", KEYS, spec, operator, **JSON)).status == 422

    guarded(scene)


def test_there_is_no_such_key() -> None:
    async def scene(stage: KeysStage) -> None:
        operator = await stage.key("*", ["admin"])
        assert (await stage.call("DELETE", f"{KEYS}/nonsense", key=operator)).status == 404

    guarded(scene)


def test_there_is_a_limit_and_the_oldest_revoked_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everbell.api.access_keys, "KEYS_MAX", 3)

    async def scene(stage: KeysStage) -> None:
        operator = await stage.key("*", ["admin"])
        spec = {"tenant": "shop", "scopes": ["read"]}
        made = [(await stage.call("POST", KEYS, spec, operator, **JSON)).json["id"] for _ in range(2)]
        assert (await stage.call("POST", KEYS, spec, operator, **JSON)).status == 409
        assert (await stage.call("DELETE", f"{KEYS}/{made[0]}", key=operator)).status == 200
        assert (await stage.call("POST", KEYS, spec, operator, **JSON)).status == 201
        kept = [key["id"] for key in (await stage.call("GET", KEYS, key=operator)).json["keys"]]
        assert len(kept) == 3
        assert made[0] not in kept

    guarded(scene)


def test_keys_that_are_made_at_once_find_no_more_room_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everbell.api.access_keys, "KEYS_MAX", 3)

    async def scene(stage: KeysStage) -> None:
        operator = await stage.key("*", ["admin"])
        await stage.key("shop", revoked=True)
        spec = {"tenant": "shop", "scopes": ["read"]}
        made = await asyncio.gather(*(stage.call("POST", KEYS, spec, operator, **JSON) for _ in range(4)))
        assert [answer.status for answer in made] == [201, 201, 409, 409]
        assert len((await stage.call("GET", KEYS, key=operator)).json["keys"]) == 3

    guarded(scene)


def test_a_long_poll_gets_nothing_any_more_when_its_key_is_revoked() -> None:
    async def scene(stage: KeysStage) -> None:
        operator = await stage.key("*", ["admin"])
        spec = {"tenant": "shop", "scopes": ["work"]}
        worker = (await stage.call("POST", KEYS, spec, operator, **JSON)).json
        lease = "/v1/tenants/shop/queues/work/lease"
        polling = asyncio.ensure_future(stage.call("POST", lease, {"wait": "20s"}, worker["key"], **JSON))
        await asyncio.sleep(0.1)
        await stage.call("DELETE", f"{KEYS}/{worker['id']}", key=operator)
        event = {"in": 0, "to": "queue:work", "payload": "secret"}
        assert (await stage.call("PUT", "/v1/tenants/shop/events/e", event, operator, **JSON)).status == 201

        assert (await polling).json == {"events": []}
        (held,) = (await stage.call("POST", lease, {"wait": "1s"}, operator, **JSON)).json["events"]
        assert (held["id"], held["attempt"]) == ("e", 1), "it was given back unspent"

    guarded(scene)
