"""The cluster over HTTP: its state, and the few commands that an operator can give it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from everbell.api.route import Resource, ResponseKind, Route
from everbell.api.views import json_response
from everbell.core.cluster import Command, Drain, Forget, SetStrategy, Strategy, Undrain, flaw, slices_of
from everbell.core.cluster.view import ClusterView, MemberView
from everbell.core.ids import Slices
from everbell.core.request import Ask
from everbell.edge.bodies import Body
from everbell.engine.requests import CountEvents, LookAtCluster, OrderCluster
from everbell.errors import Conflict, InvalidInput, NotFound
from everbell.http.message import HttpRequest, HttpResponse

CLUSTER = "/v1/cluster"


class NodeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which node is meant."""

    node: Annotated[str, Meta(min_length=1, description="its name")]


class StrategySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the partitions are to be shared out."""

    strategy: Strategy


_SEEN = ResponseKind(200, "the cluster as it is now", ClusterView)


def _on_node(verb: str, summary: str) -> Route:
    """The route of a command about one node."""
    return Route(
        "POST",
        f"{CLUSTER}/{verb}",
        summary,
        (_SEEN,),
        access="admin",
        problems=(404,),
        body=NodeSpec,
        example={"node": "node-2"},
    )


class ClusterApi(Resource, tag="cluster"):
    """Nodes, partitions and the log."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._nodes = Body(NodeSpec)
        self._strategies = Body(StrategySpec)

    @Route("GET", CLUSTER, "Read the state of the cluster", (_SEEN,), access="read", shared=True)
    async def show_cluster(self, request: HttpRequest) -> HttpResponse:
        """Members, ring, partitions, backups, stand-ins and the log, as the asked node sees them."""
        return json_response(await self._ask(LookAtCluster()))

    @_on_node("drain", "Move all partitions away from a node")
    async def drain_node(self, request: HttpRequest) -> HttpResponse:
        """The node owns no partitions until it is undrained or its process restarts."""
        return await self._about_node(request, lambda member: Drain(member.name, member.incarnation))

    @_on_node("undrain", "Let a node own partitions again")
    async def undrain_node(self, request: HttpRequest) -> HttpResponse:
        """The node gets its share of the partitions."""
        return await self._about_node(request, lambda member: Undrain(member.name))

    @_on_node("forget", "Declare that a dead node does not come back")
    async def forget_node(self, request: HttpRequest) -> HttpResponse:
        """The nodes that stand in for it keep its partitions."""
        spec = self._nodes.read(request)
        request.subject = spec.node
        seen = await self._ask(LookAtCluster())
        if all(stand_in.dead != spec.node for stand_in in seen.stand_ins):
            raise NotFound(f"no node stands in for a node {spec.node!r}")
        return json_response(await self._ask(OrderCluster(Forget(spec.node))))

    @Route(
        "PUT",
        CLUSTER + "/strategy",
        "Change how partitions are shared out",
        (_SEEN,),
        access="admin",
        problems=(404, 409),
        body=StrategySpec,
        example={"strategy": {"strategy": "weighted"}},
    )
    async def set_strategy(self, request: HttpRequest) -> HttpResponse:
        """The change moves as few partitions as the new strategy allows. It is refused if it gives another slice to a
        tenant that has unfinished events: they would stay in the old slice, out of the order of their keys.
        """
        strategy = self._strategies.read(request).strategy
        seen = await self._ask(LookAtCluster())
        if reason := flaw(strategy, len(seen.partitions)):
            raise InvalidInput(reason, "strategy")
        await self._check_slices(slices_of(seen.strategy), slices_of(strategy))
        return json_response(await self._ask(OrderCluster(SetStrategy(strategy))))

    async def _check_slices(self, before: Slices, after: Slices) -> None:
        """Refuse to move tenants that have events, dead ones included: a dead event may block its key."""
        moved = [tenant for tenant in sorted(before.keys() | after.keys()) if before.get(tenant) != after.get(tenant)]
        counts = await self._ask(CountEvents()) if moved else {}
        left = {tenant: counts[tenant].pending + counts[tenant].dead for tenant in moved if tenant in counts}
        busy = [f"{tenant} ({count:,})" for tenant, count in left.items() if count]
        if busy:
            raise Conflict(
                f"these tenants have events, which would stay in their old partitions: {', '.join(busy)}; stop "
                "scheduling for them, and change their slice when their events have been delivered or cancelled"
            )

    async def _about_node(self, request: HttpRequest, command: Callable[[MemberView], Command]) -> HttpResponse:
        spec = self._nodes.read(request)
        request.subject = spec.node
        seen = await self._ask(LookAtCluster())
        named = [member for member in seen.members if member.name == spec.node]
        if not named:
            names = ", ".join(member.name for member in seen.members)
            raise NotFound(f"there is no node {spec.node!r}; there are {names}")
        return json_response(await self._ask(OrderCluster(command(named[0]))))
