"""Flows and the memory they share.

A flow is all that one tenant sends to one target group. Events in memory are paid for from one `Budget`, and a flow
may hold as much as is still free: one flow alone can use half of the memory, ten that are stuck leave an eleventh for
everybody else. So memory is bounded, nobody has to configure a share, and a stuck flow never takes the last room from
the others.

A flow that is paused may keep a little, so that a small backlog goes on in its order at once; all paused ones together
may have an eighth of the memory, for nobody knows how long they will stand still.

What a flow has no room for stays in the store. A `Skip` remembers, per partition, from where on that is so, and which
keys are concerned from when on; the loader goes back there when the flow has room again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from everbell.channels.port import Channel
from everbell.core.event import Event
from everbell.core.target import stem_of
from everbell.core.tenant import Tenant
from everbell.engine.breaker import Breaker
from everbell.engine.left_keys import LeftKeys
from everbell.engine.pace import Pace

if TYPE_CHECKING:
    from everbell.engine.entry import Entry

EVENT_OVERHEAD_BYTES = 1_000
"""About what an event costs in memory besides its payload."""

_PAUSED_PART = 8

_STEMS_MAX = 16


class Skip:
    """Events of a flow in one partition that were left in the store: all not in memory from `position` on."""

    __slots__ = ("keys", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.keys: LeftKeys | None = None

    def leave(self, event: Event) -> None:
        """Leave the event in the store; later events of its key must not overtake it, whatever their target."""
        self.position = min(self.position, event.position)
        if event.key is not None:
            if self.keys is None:
                self.keys = LeftKeys()
            self.keys.add(event.tenant, event.key, event.run_at)

    def concerns(self, event: Event) -> bool:
        """Whether an event of the same key may have been left behind before this one."""
        if event.key is None or self.keys is None or event.position < self.position:
            return False
        first_at = self.keys.first_at(event.tenant, event.key)
        return first_at is not None and event.run_at >= first_at

    def has_key(self, tenant: str, key: str) -> bool:
        """Whether something of the key may have been left behind."""
        return self.keys is not None and self.keys.first_at(tenant, key) is not None


class Flow:
    """All that one tenant sends to one target group. Counters only; the dispatcher and the loader act on it."""

    __slots__ = (
        "breaker",
        "cap",
        "channel",
        "group",
        "held_bytes",
        "in_flight",
        "in_ring",
        "left_bytes",
        "pace",
        "paused",
        "ready",
        "skips",
        "spent",
        "stems",
        "tenant",
    )

    def __init__(self, tenant: Tenant, group: str, channel: Channel) -> None:
        self.group = group
        self.channel = channel
        self.breaker: Breaker | None = None
        self.pace: Pace | None = None
        self.spent = False
        """It has used up its pace, and waits until it may go on."""
        self.paused = False
        """Somebody paused its tenant or its target."""
        self.in_flight = 0
        self.adopt(tenant)
        self.held_bytes = 0
        self.ready: deque[Entry] = deque()
        self.in_ring = False
        self.skips: dict[int, Skip] = {}
        self.left_bytes = 0
        """What the last event that it had no room for would have cost."""
        self.stems: set[str] = set()
        """Of the targets of events that were left behind, some: by them a store tells what it need not read."""

    def adopt(self, tenant: Tenant) -> None:
        """Go by this policy from now on."""
        self.tenant = tenant
        if tenant.rate != (None if self.pace is None else self.pace.rate):
            self.pace = None if tenant.rate is None else Pace(tenant.rate)
            self.spent = False
        if tenant.breaker != (None if self.breaker is None else self.breaker.policy):
            self.breaker = None if tenant.breaker is None else Breaker(tenant.breaker)
        self.recap()

    def recap(self) -> None:
        """How many attempts may be under way at a time: none while it waits, and one more while it is probed."""
        state = "closed" if self.breaker is None else self.breaker.state
        if self.paused or self.spent or state == "open":
            self.cap = 0
        elif state == "probing":
            self.cap = self.in_flight + 1
        else:
            tenant, channel = self.tenant, self.channel
            self.cap = 1 << 60 if channel.holds else tenant.in_flight * max(tenant.batch, channel.together)

    def leave(self, event: Event) -> None:
        """An event of this flow stays in the store."""
        if event.key is None and len(self.stems) < _STEMS_MAX:
            self.stems.add(stem_of(event.to))

    @property
    def idle(self) -> bool:
        """Nothing of it is in memory or left behind, so it can be made again when it is needed."""
        return not (self.held_bytes or self.skips or self.in_flight or self.in_ring) and (self.cap > 0 or self.paused)


class Budget:
    """The bytes that events in memory may take."""

    __slots__ = ("free_bytes", "paused_share", "total_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes
        self.paused_share = 0
        """What each flow that is paused may hold."""

    def share_out(self, paused_flows: int) -> None:
        """So many flows are paused now."""
        self.paused_share = self.total_bytes // (_PAUSED_PART * max(paused_flows, 1))

    def allows(self, flow: Flow, cost: int) -> bool:
        held_bytes = flow.held_bytes + cost
        return held_bytes <= self.free_bytes and not (flow.paused and held_bytes > self.paused_share)

    def has_room_again(self, flow: Flow) -> bool:
        """Whether going back to the store pays: the flow could take in about as much as it holds, and what it left."""
        return flow.held_bytes + max(flow.held_bytes, flow.left_bytes) <= self.free_bytes

    def take(self, flow: Flow, cost: int) -> None:
        flow.held_bytes += cost
        self.free_bytes -= cost

    def give_back(self, flow: Flow, cost: int) -> None:
        flow.held_bytes -= cost
        self.free_bytes += cost
