"""The requests of an operator to the cluster, and those that are refused before they get into the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from everbell.api.cluster import ClusterApi
from everbell.core.cluster import (
    Command,
    Drain,
    Forget,
    Group,
    Percentage,
    Remove,
    SetStrategy,
    Undrain,
    Value,
    Weighted,
    apply,
)
from everbell.core.cluster.view import ClusterView, view_of
from everbell.core.request import Handlers
from everbell.engine.requests import CountEvents, LookAtCluster, OrderCluster
from everbell.errors import Conflict, InvalidInput, NotFound
from everbell.http.message import HttpRequest, HttpResponse
from everbell.stores.port import Counts
from tests.unit.core.cluster.test_view import two


class Office:
    """A cluster of two nodes, a and b, and the commands that it got."""

    def __init__(self, value: Value | None = None) -> None:
        self.value = value or two()
        self.ordered: list[Command] = []
        self.counts: dict[str, Counts] = {}
        self.api = ClusterApi(
            Handlers(LookAtCluster.by(self.look), OrderCluster.by(self.order), CountEvents.by(self.count)).ask
        )

    async def count(self, request: CountEvents) -> dict[str, Counts]:
        return self.counts

    async def look(self, request: LookAtCluster) -> ClusterView:
        return view_of(self.value, "a/x", "a", 0, 1_000, {})

    async def order(self, request: OrderCluster) -> ClusterView:
        self.ordered.append(request.command)
        self.value = apply(self.value, self.value.index + 1, request.command)
        return await self.look(LookAtCluster())

    def ask(self, handler: Callable[[HttpRequest], Awaitable[HttpResponse]], body: Any = None) -> Any:
        request = HttpRequest("POST", "/", {"content-type": "application/json"}, msgspec.json.encode(body))

        async def call() -> HttpResponse:
            return await handler(request)

        response = asyncio.run(call())
        assert response.status == 200
        return msgspec.json.decode(response.body)


def test_the_cluster_is_shown() -> None:
    office = Office()
    seen = office.ask(office.api.show_cluster)
    assert [member["name"] for member in seen["members"]] == ["a", "b"]
    assert seen["partition_states"] == {"owned": 6}
    assert office.ordered == []


def test_a_node_is_drained_and_used_again() -> None:
    office = Office()
    drained = office.ask(office.api.drain_node, {"node": "b"})
    assert [member["state"] for member in drained["members"]] == ["member", "draining"]
    used = office.ask(office.api.undrain_node, {"node": "b"})
    assert [member["state"] for member in used["members"]] == ["member", "member"]
    incarnation = drained["members"][1]["incarnation"]
    assert office.ordered == [Drain("b", incarnation), Undrain("b")]


def test_a_node_that_is_not_there_is_not_drained() -> None:
    office = Office()
    for handler in (office.api.drain_node, office.api.undrain_node):
        with pytest.raises(NotFound, match=r"no node 'c'; there are a, b"):
            office.ask(handler, {"node": "c"})
    assert office.ordered == []


def test_a_dead_node_is_forgotten() -> None:
    office = Office(apply(two(), two().index + 1, Remove("b/x", by="a/x", reason="its lease ended")))
    assert office.ask(office.api.show_cluster)["stand_ins"][0]["dead"] == "b"
    assert office.ask(office.api.forget_node, {"node": "b"})["stand_ins"] == []
    assert office.ordered == [Forget("b")]


@pytest.mark.parametrize("counts", [Counts(pending=1), Counts(dead=1)])
def test_a_tenant_with_events_keeps_its_slice(counts: Counts) -> None:
    office = Office()
    shop = group()
    office.ask(office.api.set_strategy, {"strategy": {"strategy": "percentage", "groups": [shop]}})
    [tenant] = shop["tenants"]
    office.counts = {tenant: counts, "other": Counts(pending=5), "new": Counts(delivered=5)}

    change: dict[str, Any]
    for change in ({"count": shop["count"] + 1}, {"tenants": []}, {"tenants": [tenant, "other"]}):
        with pytest.raises(Conflict, match="have events"):
            office.ask(
                office.api.set_strategy, {"strategy": {"strategy": "percentage", "groups": [{**shop, **change}]}}
            )
    with pytest.raises(Conflict, match="have events"):
        office.ask(office.api.set_strategy, {"strategy": {"strategy": "balanced"}})
    assert len(office.ordered) == 1
    kept = {**shop, "percent": shop["percent"] + 1, "tenants": [tenant, "new"]}
    office.ask(office.api.set_strategy, {"strategy": {"strategy": "percentage", "groups": [kept]}})
    assert len(office.ordered) == 2


def test_only_a_node_with_a_stand_in_can_be_forgotten() -> None:
    office = Office()
    with pytest.raises(NotFound, match="no node stands in"):
        office.ask(office.api.forget_node, {"node": "b"})
    assert office.ordered == []


@pytest.mark.parametrize(
    ("strategy", "meant"),
    [
        ({"strategy": "weighted", "weights": {"a": 2}}, Weighted({"a": 2})),
        (
            {
                "strategy": "percentage",
                "groups": [{"name": "vip", "percent": 50, "first": 0, "count": 2, "tenants": ["shop"]}],
            },
            Percentage((Group("vip", 50, 0, 2, ("shop",)),)),
        ),
    ],
)
def test_a_strategy_is_set(strategy: dict[str, Any], meant: Any) -> None:
    office = Office()
    assert office.ask(office.api.set_strategy, {"strategy": strategy})["strategy"]["strategy"] == strategy["strategy"]
    assert office.ordered == [SetStrategy(meant)]
    assert office.value.strategy == meant


def group(**fields: Any) -> dict[str, Any]:
    return {"name": "vip", "percent": 50, "first": 0, "count": 2, "tenants": ["shop"], **fields}


@pytest.mark.parametrize(
    "strategy",
    [
        {"strategy": "weighted", "weights": {"a": -1}},
        {"strategy": "weighted", "weights": {"a": 10_000_000}},
        {"strategy": "weighted", "weights": {"a": "two"}},
        {"strategy": "percentage", "groups": [group(percent=0)]},
        {"strategy": "percentage", "groups": [group(count=0)]},
        {"strategy": "percentage", "groups": [group(first=5, count=2)]},
        {"strategy": "percentage", "groups": [group(first=-1)]},
        {"strategy": "percentage", "groups": [group(), group(name="other", first=1, tenants=[])]},
        {"strategy": "percentage", "groups": [group(), group(name="other", first=2)]},
        {"strategy": "percentage", "groups": [group(), group(first=2, tenants=[])]},
        {"strategy": "percentage", "groups": [group(percent=100)]},
        {"strategy": "percentage", "groups": [{"name": "vip"}]},
        {"strategy": "random"},
        {"weights": {}},
        "balanced",
    ],
)
def test_a_strategy_that_makes_no_sense_does_not_get_into_the_log(strategy: Any) -> None:
    office = Office()
    with pytest.raises(InvalidInput):
        office.ask(office.api.set_strategy, {"strategy": strategy})
    assert office.ordered == []


@pytest.mark.parametrize("body", [{}, {"node": ""}, {"node": 7}, {"node": "b", "force": True}, [], "b"])
def test_a_body_that_is_not_understood_is_refused(body: Any) -> None:
    office = Office()
    for handler in (office.api.drain_node, office.api.undrain_node, office.api.forget_node):
        with pytest.raises(InvalidInput):
            office.ask(handler, body)
    assert office.ordered == []
