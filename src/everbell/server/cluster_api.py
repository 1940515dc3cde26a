"""What the cluster looks like, and the few things that an operator may ask of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta, Struct

from everbell.core.cluster import Command, Drain, Forget, SetStrategy, Strategy, Undrain, flaw
from everbell.core.cluster.view import ClusterView, MemberView
from everbell.errors import InvalidInput, NotFound
from everbell.server.bodies import Body
from everbell.server.message import Request, Response
from everbell.server.views import json_response

Look = Callable[[], Awaitable[ClusterView]]
Order = Callable[[Command], Awaitable[ClusterView]]
"""Appends a command to the log, and waits until it was played here."""


class NodeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which node is meant."""

    node: Annotated[str, Meta(min_length=1, description="its name")]


class StrategySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the partitions are to be shared out."""

    strategy: Strategy


class ClusterApi:
    """The handlers of everything about nodes."""

    def __init__(self, look: Look, order: Order) -> None:
        self._look = look
        self._order = order
        self._nodes = Body(NodeSpec)
        self._strategies = Body(StrategySpec)

    async def show(self, request: Request) -> Response:
        """Members, ring, partitions, backups, stand-ins, the log."""
        return json_response(await self._look())

    async def drain(self, request: Request) -> Response:
        """Move everything away from a node, as long as this process of it runs."""
        return await self._about_node(request, lambda member: Drain(member.name, member.incarnation))

    async def undrain(self, request: Request) -> Response:
        """Let it own partitions again."""
        return await self._about_node(request, lambda member: Undrain(member.name))

    async def forget(self, request: Request) -> Response:
        """A dead node is not expected back: who stands in for it keeps what it has."""
        spec = self._nodes.read(request)
        request.subject = spec.node
        seen = await self._look()
        if all(stand_in.dead != spec.node for stand_in in seen.stand_ins):
            raise NotFound(f"nobody stands in for a node {spec.node!r}")
        return json_response(await self._order(Forget(spec.node)))

    async def set_strategy(self, request: Request) -> Response:
        """Share out the partitions in another way, or with other weights."""
        strategy = self._strategies.read(request).strategy
        seen = await self._look()
        if reason := flaw(strategy, len(seen.partitions)):
            raise InvalidInput(reason, "strategy")
        return json_response(await self._order(SetStrategy(strategy)))

    async def _about_node(self, request: Request, command: Callable[[MemberView], Command]) -> Response:
        spec = self._nodes.read(request)
        request.subject = spec.node
        seen = await self._look()
        named = [member for member in seen.members if member.name == spec.node]
        if not named:
            names = ", ".join(member.name for member in seen.members)
            raise NotFound(f"there is no node {spec.node!r}; there are {names}")
        return json_response(await self._order(command(named[0])))
