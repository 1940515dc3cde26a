"""Questions about one node: its queues, targets and recent past, of stored events and of copies together.

Both engines of the node are asked, and their answers are merged like those of two nodes. Waiting events and attempts
add up. Each replica of an event would count it as pending, so a node counts its share of them.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from msgspec.structs import replace

from everbell.core.request import Ask, Handlers
from everbell.engine.history import Gauges, Past
from everbell.engine.request_routes import EveryNode
from everbell.engine.view_requests import GetPast
from everbell.replicas.holder import Holder
from everbell.replicas.port import Members

A = TypeVar("A")

# The number of copies on this node up to which its events are counted, instead of estimating.
_COUNTED_MAX = 10_000


class NodeViews:
    """Answers the requests to every node; `own` answers all others, and about stored events."""

    def __init__(self, holder: Holder, members: Members, own: Ask) -> None:
        self._holder = holder
        self._members = members
        self._own = own
        self.ask: Ask = Handlers(EveryNode.by(self._both), GetPast.by(self._past), otherwise=own).ask

    async def _both(self, request: EveryNode[A]) -> A:
        answers = [await self._own(request), await self._holder.engine.ask(request)]
        return request.merged(answers, ())

    async def _past(self, request: GetPast) -> Past:
        past = await self._holder.engine.ask(request)
        share = self._share()
        samples = [replace(sample, end=sample.end.as_held(share)) for sample in past.samples]
        held = replace(past, samples=samples, now=self._standing(past.now, request.tenant, share))
        return request.merged([await self._own(request), held], ())

    def _standing(self, now: Gauges, tenant: str | None, share: float) -> Gauges:
        """How things stand, with the events that this node lists; of many events, about their number."""
        copies, names = self._holder.store.copies, self._members.roster.names
        if len(copies) > _COUNTED_MAX:
            return now.as_held(share)
        events = [copy.event for copy in copies.values() if copy.event is not None and tenant in (None, copy.tenant)]
        states = Counter(event.state == "dead" for event in events if self._holder.lists(event, names))
        return replace(now.as_held(0), held_pending=states[False], held_dead=states[True])

    def _share(self) -> float:
        """The share of the copies of which this node is the first in line."""
        ranks = self._holder.held_by_rank()
        return ranks.get(0, 0) / max(sum(ranks.values()), 1)
