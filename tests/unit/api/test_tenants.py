"""Policies over HTTP: seen, set under a version, deleted, refused."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from everbell.api.application import Api
from everbell.cluster.follower import PolicyFollower
from everbell.core.cluster import Policy
from everbell.core.health import Health
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.errors import VersionMismatch
from everbell.http.message import HttpRequest, HttpResponse
from everbell.stores.memory.store import MemoryStore
from everbell.testing.virtual import VirtualClock, run_virtual
from tests.unit.api.api_caller import Answered

SECRET = "whsec_" + b64encode(b"s" * 24).decode()
SHOP = "/v1/tenants/shop"


class MemoryPolicies:
    """Documents that are kept here."""

    def __init__(self, follower: PolicyFollower) -> None:
        self._follower = follower
        self._documents: dict[str, Policy] = {}
        self._index = 6

    def documents(self) -> Mapping[str, Policy]:
        return self._documents

    async def put(self, tenant: str, document: bytes, expected: int | None) -> int:
        self._check(tenant, expected)
        self._index += 1
        self._documents = {**self._documents, tenant: Policy(self._index, document)}
        self._follower.follow(self._documents)
        return self._index

    async def drop(self, tenant: str, expected: int | None) -> None:
        self._check(tenant, expected)
        self._documents = {name: policy for name, policy in self._documents.items() if name != tenant}
        self._follower.follow(self._documents)

    def _check(self, tenant: str, expected: int | None) -> None:
        if expected is not None and expected != self._documents[tenant].version:
            raise VersionMismatch("changed")


class Caller:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def call(self, method: str, target: str, body: Any = b"", **headers: str) -> Answered:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self._api(HttpRequest(method, target, named, content))
        return Answered(answer if isinstance(answer, HttpResponse) else await answer)


def called(test: Callable[[Caller], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        tenants = Tenants(named=(Tenant("shop", to="queue:work", in_flight=9),))
        engine = await Engine.start(MemoryStore(8), {}, tenants, clock, SeededEntropy(7))
        policies = MemoryPolicies(PolicyFollower(tenants, engine.adopt))
        ready = Health("ready")
        api = Api(engine.ask, tenants, clock, lambda: ready, str, policies=policies)
        try:
            await test(Caller(api))
        finally:
            await engine.stop()

    run_virtual(main)


def test_a_policy_is_shown_with_the_source_of_each_field() -> None:
    async def scene(caller: Caller) -> None:
        seen = await caller.call("GET", SHOP)
        assert seen.status == 200
        assert seen.json["version"] == 0
        assert "etag" not in seen.headers
        assert (seen.json["policy"]["to"], seen.json["policy"]["timeout"]) == ("queue:work", "10s")
        assert (seen.json["sources"]["to"], seen.json["sources"]["timeout"]) == ("settings", "default")

    called(scene)


def test_a_document_counts_at_once_and_until_it_is_deleted() -> None:
    async def scene(caller: Caller) -> None:
        put = await caller.call("PUT", SHOP, {"to": "queue:other", "limits": {"payload": 10}})
        assert (put.status, put.headers["etag"]) == (200, '"7"')
        assert (put.json["sources"]["to"], put.json["policy"]["in_flight"]) == ("document", 9)
        refused = await caller.call("POST", f"{SHOP}/events", {"in": "1h", "payload": "far too long for this"})
        assert refused.status == 413
        made = await caller.call("POST", f"{SHOP}/events", {"in": "1h", "id": "a"})
        assert made.status == 201
        assert (await caller.call("GET", f"{SHOP}/events/a")).json["to"] == "queue:other"

        gone = await caller.call("DELETE", SHOP, if_match='"7"')
        assert (gone.status, gone.json["version"], gone.json["policy"]["to"]) == (200, 0, "queue:work")
        assert (await caller.call("DELETE", SHOP)).status == 404

    called(scene)


def test_a_version_guards_a_change() -> None:
    async def scene(caller: Caller) -> None:
        await caller.call("PUT", SHOP, {"batch": 2})
        await caller.call("PUT", SHOP, {"batch": 3})
        assert (await caller.call("PUT", SHOP, {"batch": 4}, if_match='"7"')).status == 412
        assert (await caller.call("PUT", SHOP, {"batch": 4}, if_match='"8"')).status == 200

    called(scene)


def test_an_invalid_policy_is_refused_with_a_hint() -> None:
    async def scene(caller: Caller) -> None:
        for document, field, hint in (
            ({"timeuot": "1s"}, "timeuot", "did you mean timeout?"),
            ({"limits": {"payloads": 1}}, "limits.payloads", "did you mean payload?"),
            ({"to": "nowhere"}, "to", "is not a target"),
            ({"on_dead": "bury"}, "on_dead", "block, park"),
            ({"retry": {"backoff": "1h"}}, "retry.max_backoff", ""),
        ):
            answer = await caller.call("PUT", SHOP, document)
            assert (answer.status, answer.json["field"]) == (422, field)
            assert hint in answer.json["detail"]
        assert (await caller.call("PUT", SHOP, b" " * 20_000 + b"{}")).status == 413

    called(scene)


def test_secrets_are_never_shown_again() -> None:
    async def scene(caller: Caller) -> None:
        put = await caller.call("PUT", SHOP, {"secrets": [SECRET]})
        for answer in (put, await caller.call("GET", SHOP)):
            assert answer.json["policy"]["secrets"] == [f"whsec_…{SECRET[-4:]}"]
            assert SECRET.encode() not in answer.body
        kept = await caller.call("PUT", SHOP, put.json["policy"])
        assert (kept.status, kept.json["policy"]) == (200, put.json["policy"])

    called(scene)


def test_all_tenants_are_listed() -> None:
    async def scene(caller: Caller) -> None:
        await caller.call("POST", "/v1/tenants/guest/events", {"in": "1h", "to": "queue:q"})
        await caller.call("PUT", "/v1/tenants/new", {})
        listed = (await caller.call("GET", "/v1/tenants")).json["tenants"]
        assert listed == [
            {"name": "guest", "version": 0, "pending": 1, "dead": 0, "pauses": 0},
            {"name": "new", "version": 7, "pending": 0, "dead": 0, "pauses": 0},
            {"name": "shop", "version": 0, "pending": 0, "dead": 0, "pauses": 0},
        ]

    called(scene)
