"""Questions about one node: its queues, targets and recent past, of stored events and of copies together.

Both engines of the node are asked, and their answers are merged like those of two nodes. Waiting events and attempts
add up. Each replica of an event would count it as pending, so a node counts its share of them.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from everbell.core.request import Ask, Handlers
from everbell.engine.history import Past
from everbell.engine.request_routes import EveryNode
from everbell.engine.view_requests import GetPast
from everbell.replicas.holder import Holder

A = TypeVar("A")


class NodeViews:
    """Answers the requests to every node; `own` answers all others, and about stored events."""

    def __init__(self, holder: Holder, own: Ask) -> None:
        self._holder = holder
        self._own = own
        self.ask: Ask = Handlers(EveryNode.by(self._both), GetPast.by(self._past), otherwise=own).ask

    async def _both(self, request: EveryNode[A]) -> A:
        answers = [await self._own(request), await self._holder.engine.ask(request)]
        return request.merged(answers, ())

    async def _past(self, request: GetPast) -> Past:
        past = await self._holder.engine.ask(request)
        share = self._share()
        samples = [replace(sample, end=sample.end.as_held(share)) for sample in past.samples]
        held = replace(past, samples=samples, now=past.now.as_held(share))
        return request.merged([await self._own(request), held], ())

    def _share(self) -> float:
        """The share of the copies of which this node is the first in line."""
        ranks = self._holder.held_by_rank()
        return ranks.get(0, 0) / max(sum(ranks.values()), 1)
