"""One key: its head, those that wait, and a head that is dropped."""

from __future__ import annotations

import asyncio

from tests.unit.api.api_caller import EVENTS, Caller, called

KEYS = "/v1/tenants/shop/keys"
KEY = f"{KEYS}/k"


async def stuck(caller: Caller) -> None:
    """A dead head that blocks its key, and two that wait for it."""
    await caller.schedule("shop", id="first", key="k", **{"in": 0, "to": "https://nobody.example/"})
    await caller.schedule(id="second", key="k", **{"in": "1s", "to": "queue:work"})
    await caller.schedule(id="third", key="k", **{"in": "2s", "to": "queue:work"})
    await caller.schedule(id="later", key="k", **{"in": "1h", "to": "queue:work"})
    await asyncio.sleep(10)


def test_a_key_names_its_head_and_how_many_wait() -> None:
    async def test(caller: Caller) -> None:
        await stuck(caller)
        line = (await caller.call("GET", KEY)).json
        assert (line["key"], line["waiting"], line["head"]["id"], line["head"]["status"]) == ("k", 2, "first", "dead")
        head = (await caller.call("GET", f"{EVENTS}/first")).json
        assert line["head"] == {name: value for name, value in head.items() if name != "why"}

    called(test)


def test_dropping_the_head_lets_the_key_go_on() -> None:
    async def test(caller: Caller) -> None:
        await stuck(caller)
        dropped = await caller.call("DELETE", f"{KEY}/head", if_match='"2"')
        assert dropped.status == 412
        dropped = await caller.call("DELETE", f"{KEY}/head")
        assert (dropped.status, dropped.json["id"], dropped.json["status"]) == (200, "first", "cancelled")
        await asyncio.sleep(1)
        line = (await caller.call("GET", KEY)).json
        assert (line["head"]["id"], line["waiting"]) == ("second", 1)

        leased = await caller.call("POST", "/v1/tenants/shop/queues/work/lease", {"limit": 10})
        (event,) = leased.json["events"]
        line = (await caller.call("GET", KEY)).json
        assert (line["head"]["id"], line["head"]["status"], line["waiting"]) == ("second", "delivering", 1)
        await caller.call("POST", "/v1/tenants/shop/queues/work/ack", {"leases": [event["lease"]]})
        await asyncio.sleep(1)
        assert (await caller.call("DELETE", f"{KEY}/head")).json["id"] == "third"
        await asyncio.sleep(1)
        assert (await caller.call("GET", KEY)).json == {"key": "k", "waiting": 0}

    called(test)


def test_a_key_with_nothing_due_has_no_head() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="later", key="k")
        assert (await caller.call("GET", KEY)).json == {"key": "k", "waiting": 0}
        assert (await caller.call("DELETE", f"{KEY}/head")).status == 404
        assert (await caller.call("GET", "/v1/tenants/shop/keys/%00")).status == 422

    called(test)


def test_blocked_keys_are_listed_with_their_heads() -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("GET", KEYS)).json == {"keys": []}
        await stuck(caller)
        await caller.schedule("store", id="first", key="k", **{"in": 0, "to": "https://nobody.example/"})
        await caller.schedule("shop", id="free", key="free", **{"in": 0, "to": "queue:work"})
        await caller.schedule("shop", id="last", key="z", **{"in": 0, "to": "https://nobody.example/"})
        await asyncio.sleep(10)
        lines = (await caller.call("GET", KEYS)).json["keys"]
        assert [(line["key"], line["waiting"], line["head"]["id"]) for line in lines] == [
            ("k", 2, "first"),
            ("z", 0, "last"),
        ]
        view = (await caller.call("GET", f"{KEYS}?limit=1")).json
        assert (len(view["keys"]), view["more"]) == (1, True)
        await caller.call("DELETE", f"{KEY}/head")
        await asyncio.sleep(1)
        lines = (await caller.call("GET", KEYS)).json["keys"]
        assert "first" not in [line["head"]["id"] for line in lines]

    called(test)
