"""Access of every route: without a key, with an invalid key, as another tenant, and with too small a scope.

The tests walk the route table, so a new route is tested without being named here. The type checker makes every route
declare its access.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everbell.api.facade import FacadeSetting
from everbell.api.facade_list import FACADES
from everbell.api.route import Route
from everbell.core.access import SCOPES
from tests.unit.api.keys_stage import KeysStage, guarded

SECRET = "the crown jewels"
EVENT = "order-17"
ABSENT = "order-18"
OPEN = {"healthz", "readyz", "openapi", "docs", "front", "page_file", "ping"}
"""The routes that need no key. They are listed here, too, so that no other is opened by mistake."""

REFUSED = (401, 403)
ALL_FACADES = [FacadeSetting(name, "shop" if facade.takes_tenant else None) for name, facade in FACADES.items()]


def path_of(route: Route, key_id: str, event: str = EVENT, tenant: str = "shop") -> str:
    named = {
        "{tenant}": tenant,
        "{id}": event,
        "{queue}": "work",
        "{key}": key_id,
        "{file}": "app.js",
        "{timer}": f"{event}-2",
    }
    return "/".join(named.get(segment, segment) for segment in route.path.split("/"))


def scope_of(route: Route) -> Any:
    """The scope that it takes."""
    return {"operator": "admin", "any": "read", "open": "read"}.get(route.access, route.access)


def key_tenant(route: Route) -> str:
    """The tenant of the key that the route needs."""
    if route.access == "operator":
        return "*"
    return "shop" if "{tenant}" in route.path else route.tenant or "*"


def methods_of(route: Route) -> tuple[str, ...]:
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)


async def furnished(stage: KeysStage) -> str:
    """A tenant with an event, an operator, and the operator's key."""
    operator = await stage.key("*", ["admin"])
    spec = {"in": "1h", "to": "queue:work", "payload": SECRET}
    answer = await stage.call("PUT", f"/v1/tenants/shop/events/{EVENT}", spec, operator)
    assert answer.status == 201, answer.body
    stage.calls.clear()
    return operator


async def refused(stage: KeysStage, route: Route, target: str, key: str | None, status: int) -> bytes:
    """Send a request that is refused and has no effect; returns the body of the answer."""
    said, before = b"", stage.api.unauthorized
    for method in methods_of(route):
        answer = await stage.call(method, target, b"{}", key, content_type="application/json")
        assert answer.status == status, (route.name, method, answer.status, answer.body)
        assert answer.content_type == "application/problem+json"
        assert stage.calls == [], f"{route.name} did {stage.calls} for a refused request"
        assert ("www-authenticate" in answer.headers) is (status == 401)
        for secret in (SECRET, EVENT, ABSENT, "evk_" if key is None else key.rpartition("_")[2]):
            assert secret.encode() not in answer.body.replace("evk_…".encode(), b""), route.name
        said = answer.body
    assert stage.api.unauthorized - before == (len(methods_of(route)) if status == 401 else 0)
    return said


async def admitted(stage: KeysStage, route: Route, target: str, key: str | None) -> None:
    answer = await stage.call(route.method, target, b"{}", key, content_type="application/json")
    assert answer.status not in REFUSED, (route.name, answer.body)
    stage.calls.clear()


def locked(stage: KeysStage) -> list[Route]:
    return [route for route in stage.api.routes if route.access != "open"]


def test_few_routes_are_open_and_no_change_needs_only_read() -> None:
    async def walk(stage: KeysStage) -> None:
        assert {"create_key", "pause", "put_tenant", "show_cluster"} <= {route.name for route in stage.api.routes}
        assert {route.name for route in stage.api.routes if route.access == "open"} == OPEN
        # A route that changes data needs more than the scope `read`.
        for route in stage.api.routes:
            assert route.method == "GET" or route.access != "read", route.name

    guarded(walk, facades=ALL_FACADES)


@pytest.mark.parametrize("may_be_open", [True, False])
def test_a_request_without_a_key(may_be_open: bool) -> None:
    async def walk(stage: KeysStage) -> None:
        operator = await furnished(stage)
        revoked = await stage.key("*", ["admin"], revoked=True)
        stranger = operator[:-1] + ("a" if operator[-1] != "a" else "b")
        for route in locked(stage):
            for key in (None, revoked, stranger, "nonsense"):
                await refused(stage, route, path_of(route, "some-key"), key, 401)

    guarded(walk, may_be_open=may_be_open, facades=ALL_FACADES)


def test_as_another_tenant() -> None:
    async def walk(stage: KeysStage) -> None:
        await furnished(stage)
        bank = await stage.key("bank", SCOPES)
        for route in locked(stage):
            if route.access == "any":
                await admitted(stage, route, path_of(route, ""), bank)
                continue
            there = await refused(stage, route, path_of(route, stage.keys.ring().keys[0].id), bank, 403)
            absent = await refused(stage, route, path_of(route, "no-such-key", ABSENT), bank, 403)
            assert there == absent, "the answer does not reveal whether an object exists"
            if route.access == "operator":
                await refused(stage, route, path_of(route, "", tenant="bank"), bank, 403)
            elif "{tenant}" in route.path:
                await admitted(stage, route, path_of(route, "", tenant="bank"), bank)

    guarded(walk, facades=ALL_FACADES)


def test_with_too_small_a_scope() -> None:
    async def walk(stage: KeysStage) -> None:
        await furnished(stage)
        for route in locked(stage):
            others = [scope for scope in SCOPES if scope not in (route.access, "admin")]
            if route.access == "any":
                continue
            small = await stage.key(key_tenant(route), others)
            said = await refused(stage, route, path_of(route, "some-key"), small, 403)
            assert f"{scope_of(route)!r}".encode() in said, "the answer names the missing scope"

    guarded(walk, facades=ALL_FACADES)


def test_with_just_enough() -> None:
    async def walk(stage: KeysStage) -> None:
        operator = await furnished(stage)
        for route in stage.api.routes:
            scope = scope_of(route)
            await admitted(stage, route, path_of(route, "some-key"), operator)
            await admitted(stage, route, path_of(route, "some-key"), await stage.key(key_tenant(route), [scope]))
            if key_tenant(route) == "shop":
                await admitted(stage, route, path_of(route, "some-key"), await stage.key("shop", ["admin"]))
                await admitted(stage, route, path_of(route, "some-key"), await stage.key("*", [scope]))

    guarded(walk, facades=ALL_FACADES)


def test_without_keys_the_doors_are_open_only_where_that_is_wanted() -> None:
    async def walk_open(stage: KeysStage) -> None:
        for route in stage.api.routes:
            await admitted(stage, route, path_of(route, "some-key"), None)
            await admitted(stage, route, path_of(route, "some-key"), "for-a-proxy")

    async def walk_closed(stage: KeysStage) -> None:
        for route in locked(stage):
            await refused(stage, route, path_of(route, "some-key"), None, 401)

    guarded(walk_open, may_be_open=True, facades=ALL_FACADES)
    guarded(walk_closed, may_be_open=False, facades=ALL_FACADES)


@pytest.mark.parametrize("written", ["b%61nk", "%62%61%6e%6b"])
def test_a_tenant_is_the_same_however_it_is_written(written: str) -> None:
    async def walk(stage: KeysStage) -> None:
        await furnished(stage)
        bank, shop = await stage.key("bank"), await stage.key("shop")
        assert (await stage.call("GET", f"/v1/tenants/{written}/events", key=bank)).status == 200
        assert (await stage.call("GET", f"/v1/tenants/{written}/events", key=shop)).status == 403

    guarded(walk, facades=ALL_FACADES)


@pytest.mark.parametrize("path", ["bank%2F..%2Fshop/events", "bank/../shop/events", "./shop/events", "/shop/events"])
def test_no_path_leads_around(path: str) -> None:
    async def walk(stage: KeysStage) -> None:
        await furnished(stage)
        answer = await stage.call("GET", f"/v1/tenants/{path}", key=await stage.key("bank", SCOPES))
        assert answer.status in (403, 404, 422)
        assert stage.calls == []

    guarded(walk, facades=ALL_FACADES)


CHANGES = (
    ("PUT", f"/v1/tenants/shop/events/{EVENT}", {"in": "2h", "to": "queue:work", "payload": "mine"}),
    ("PATCH", f"/v1/tenants/shop/events/{EVENT}", {"in": "3h"}),
    ("POST", f"/v1/tenants/shop/events/{EVENT}/snooze", {"by": "10m"}),
    ("POST", f"/v1/tenants/shop/events/{EVENT}/deliver", None),
    ("DELETE", f"/v1/tenants/shop/events/{EVENT}", None),
)


def test_a_change_shows_nothing_to_a_key_that_may_not_read() -> None:
    """The answer to a change has the whole event, which `GET` denies to such a key."""

    async def walk(stage: KeysStage) -> None:
        operator = await furnished(stage)
        producer = await stage.key("shop", ["schedule"])
        path = f"/v1/tenants/shop/events/{EVENT}"
        assert (await stage.call("GET", path, None, producer)).status == 403
        for method, target, body in CHANGES:
            answer = await stage.call(method, target, body, producer)
            assert answer.status == 200, answer.body
            assert set(answer.json) == {"id", "tenant", "at", "status", "version"}, (method, target)
            assert answer.headers["etag"] == f'"{answer.json["version"]}"'
        spec = {"in": "1h", "to": "queue:work", "payload": SECRET, "key": "line"}
        for name in ("head", "next"):
            created = await stage.call("PUT", f"/v1/tenants/shop/events/{name}", {**spec, "in": 0}, producer)
            assert (created.status, "to" in created.json) == (201, False)
        await asyncio.sleep(1)
        dropped = await stage.call("DELETE", "/v1/tenants/shop/keys/line/head", None, producer)
        assert (dropped.status, SECRET.encode() in dropped.body) == (200, False), dropped.body
        both = await stage.key("shop", ["schedule", "read"])
        for key in (operator, both):
            await stage.call("PUT", "/v1/tenants/shop/events/again", spec, operator)
            shown = await stage.call("PATCH", "/v1/tenants/shop/events/again", {"in": "3h"}, key)
            assert shown.json["payload"] == SECRET

    guarded(walk)
