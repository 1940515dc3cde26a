"""The accounts of tenants: how they share a node's memory and its attempts in flight.

Tenants share first, and the flows of a tenant share what the tenant may have. Both shares are moving thresholds, as in
the buffers of network switches. A tenant may use four times as much as is still free: four fifths of the node while it
is alone, and n greedy tenants that grow together leave one part in 4n + 1 to the next. Within its tenant, a flow may
hold a third of what its tenant may still take: half of the memory while both are alone. So memory is bounded without a
configured share, and neither a stuck flow nor a tenant with many targets takes the last room from others.

A flow is paid for like an event while it has events in memory. The first flows are free, so that a small budget
holds events of several flows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everbell.engine.flow import Flow

SHARE = 4
"""A tenant may use this many times what is still free."""

# The approximate cost of a flow in memory: counters, an empty queue, and its place in several tables.
FLOW_BYTES = 2_000
FLOWS_FREE = 256

_PAUSED_PART = 8
# Idle flows may take this part of the memory, in addition to the budget.
_KEPT_PART = 16
# The number of events for which there should be room before a tenant's overflow is read.
_OVERFLOW_EVENTS = 64
_OVERFLOW_PART = 8


class Account:
    """Everything that one tenant uses of a node: only counters."""

    __slots__ = ("flows", "held_bytes", "in_flight", "in_ring", "name", "ring", "skipped_flows")

    def __init__(self, name: str) -> None:
        self.name = name
        self.flows = 0
        """The number of its flows."""
        self.held_bytes = 0
        self.in_flight = 0
        """The number of its attempts in flight, without leases of workers."""
        self.ring: deque[Flow] = deque()
        """Its flows that may start attempts now, in the order of their turns."""
        self.in_ring = False
        """The dispatcher will give it a turn, as soon as it has slots."""
        self.skipped_flows = 0
        """The number of its flows that have events behind skips."""


class Budget:
    """The bytes that events and flows in memory may use."""

    __slots__ = ("flows", "flows_kept", "free_bytes", "paused_share", "total_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes
        self.paused_share = 0
        """The bytes that each paused flow may hold."""
        self.flows = 0
        """The number of flows that have events in memory."""
        self.flows_kept = max(total_bytes // (_KEPT_PART * FLOW_BYTES), FLOWS_FREE)
        """The number of flows from which on idle ones are dropped."""

    @property
    def has_free_flows(self) -> bool:
        return self.flows < FLOWS_FREE

    def split_paused_share(self, paused_flows: int) -> None:
        """Divide the share of paused flows among this number of flows."""
        self.paused_share = self.total_bytes // (_PAUSED_PART * max(paused_flows, 1))

    def allows(self, flow: Flow, cost: int) -> bool:
        """Whether the flow may hold an event of this cost."""
        held_bytes = flow.held_bytes
        if not held_bytes:
            cost += self._flow_bytes()
        if (SHARE - 1) * held_bytes + flow.account.held_bytes + SHARE * cost > SHARE * self.free_bytes:
            return False
        return not (flow.paused and held_bytes + cost > self.paused_share)

    def allows_flow(self, account: Account, cost: int) -> bool:
        """Whether the tenant may have one more flow, with an event of this cost."""
        return account.held_bytes + SHARE * (cost + self._flow_bytes()) <= SHARE * self.free_bytes

    def room_for(self, flow: Flow, cost: int) -> int:
        """The number of further events of this cost that the flow may hold."""
        room = SHARE * self.free_bytes - flow.account.held_bytes - (SHARE - 1) * flow.held_bytes
        return max(room, 0) // (SHARE * cost)

    def has_room_again(self, flow: Flow) -> bool:
        """Whether it is worth reading skipped events: the flow could about double the bytes that it holds.

        An overflow holds nothing, and its tenant has other events in memory: a read should bring several events.
        """
        held_bytes = flow.account.held_bytes
        wanted = max(flow.held_bytes, flow.skipped_bytes)
        if flow.is_overflow:
            wanted = max(wanted, min(_OVERFLOW_EVENTS * flow.skipped_bytes, held_bytes // _OVERFLOW_PART))
        return (SHARE - 1) * flow.held_bytes + held_bytes + SHARE * wanted <= SHARE * self.free_bytes

    def take(self, flow: Flow, cost: int) -> None:
        if not flow.held_bytes:
            flow.own_bytes = self._flow_bytes()
            self.flows += 1
            cost += flow.own_bytes
        flow.held_bytes += cost
        flow.account.held_bytes += cost
        self.free_bytes -= cost

    def give_back(self, flow: Flow, cost: int) -> None:
        if flow.held_bytes == flow.own_bytes + cost:
            self.flows -= 1
            cost += flow.own_bytes
        flow.held_bytes -= cost
        flow.account.held_bytes -= cost
        self.free_bytes += cost

    def _flow_bytes(self) -> int:
        return 0 if self.has_free_flows else FLOW_BYTES


class Starved:
    """Flows that left events in the store because they had no room. Tenants take turns, and so do their flows."""

    def __init__(self) -> None:
        self._flows: dict[Account, dict[Flow, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Flow]:
        """All flows, by tenant. The flow that has its next turn comes first in its tenant."""
        return (flow for flows in self._flows.values() for flow in flows)

    def add(self, flow: Flow) -> None:
        """Give the flow a turn, after the other flows of its tenant, unless it has one."""
        flows = self._flows.setdefault(flow.account, {})
        self._count += flow not in flows
        flows.setdefault(flow, None)

    def discard(self, flow: Flow) -> None:
        flows = self._flows.get(flow.account)
        if flows is not None and flow in flows:
            self._count -= 1
            del flows[flow]
            if not flows:
                del self._flows[flow.account]

    def next(self) -> Flow:
        """The flow that has its turn. Its tenant and the flow have their next turn after all others."""
        account, flows = next(iter(self._flows.items()))
        del self._flows[account]
        self._flows[account] = flows
        flow = next(iter(flows))
        del flows[flow]
        flows[flow] = None
        return flow
