"""The kills that a node knows of, in the form that the dispatcher and the intake ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from everbell.core.event import Event
from everbell.core.kill import Kill, Tagged, TenantKills, killed, kills_by_tenant
from everbell.core.verdict import OccurrenceEnded


class KillsInForce:
    """The kills that this node knows of, and the number of events that each has ended here."""

    def __init__(self) -> None:
        self.on: tuple[Kill, ...] = ()
        self.ended: Counter[str] = Counter()
        """By the place of the kill."""
        self._by_tenant: dict[str, TenantKills] = {}

    def set(self, kills: Iterable[Kill]) -> None:
        self.on = tuple(kills)
        self._by_tenant = kills_by_tenant(self.on)
        places = {kill.place for kill in self.on}
        self.ended = Counter({place: count for place, count in self.ended.items() if place in places})

    def concern(self, tenant: str) -> bool:
        """Whether any event of the tenant may be killed."""
        return tenant in self._by_tenant

    def kill_of(self, tenant: str, event: Tagged) -> Kill | None:
        """The kill that ends the event, if there is one."""
        kills = self._by_tenant.get(tenant)
        return None if kills is None else kills.kill_of(event)

    def instead(self, event: Event, now: int) -> OccurrenceEnded | None:
        """The end of the event instead of an attempt; None if it may start."""
        kill = self.kill_of(event.tenant, event)
        if kill is None:
            return None
        self.ended[kill.place] += 1
        return OccurrenceEnded(killed(event, kill, now), None)
