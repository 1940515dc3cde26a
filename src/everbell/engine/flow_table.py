"""The flows in memory, and the accounts of their tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from everbell.channels.port import Channel
from everbell.core.event import Event
from everbell.core.pause import Held
from everbell.core.target import group_of, stem_of
from everbell.core.tenant import Tenants
from everbell.engine.account import Account, Budget
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, OVERFLOW, Flow
from everbell.engine.partition import Partition
from everbell.errors import EverbellError

_STEMS_KEPT = 10_000


class FlowTable:
    """Finds the flow of an event, makes flows while there is memory for them, and drops idle flows."""

    def __init__(
        self,
        budget: Budget,
        tenants: Tenants,
        channel_for: Callable[[str], Channel],
        lacks_handler: Callable[[str], bool] = lambda group: False,
        on_paused_flow: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_paused_flow` is called when there is one more paused flow, so each may hold less than before."""
        self.held = Held()
        """The pauses in force. A new flow that they concern is created paused."""
        self.lacks_handler = lacks_handler
        """Whether a target group is a handler that is not registered. Its flow is paused until it is."""
        self.paused = 0
        self._budget = budget
        self._tenants = tenants
        self._channel_for = channel_for
        self._on_paused_flow = on_paused_flow
        self._flows: dict[tuple[str, str], Flow] = {}
        self._accounts: dict[str, Account] = {}
        # The target group of each stem of a target.
        self._groups: dict[str, str] = {}

    def all(self) -> list[Flow]:
        """All flows, including the overflows of tenants."""
        return list(self._flows.values())

    def of(self, event: Event) -> Flow:
        """The flow of an event that comes to memory in any case."""
        group = self._group(event)
        return self._flows.get((event.tenant, group)) or self._make(event.tenant, group)

    def find(self, event: Event) -> Flow | None:
        """The flow of an event, if it is in memory."""
        return self._flows.get((event.tenant, self._group(event)))

    def look_up(self, event: Event) -> Flow:
        """The flow of an event that need not be in memory. A flow that is made here is not kept."""
        account = self._accounts.get(event.tenant) or Account(event.tenant)
        return self.find(event) or self._new(event.tenant, self._group(event), account)

    def within(self, event: Event, partition: Partition, besides: Flow | None = None) -> Flow:
        """The flow of an event, or its tenant's overflow if the tenant has no memory for one more flow.

        An event that comes after events of the overflow waits there, too, unless `besides` is the overflow.
        """
        tenant, group = event.tenant, self._group(event)
        flow = self._flows.get((tenant, group))
        if flow is not None or self._budget.has_free_flows:
            return flow or self._make(tenant, group)
        overflow = self._flows.get((tenant, OVERFLOW))
        if overflow is not None and overflow is not besides:
            skip = overflow.skips.get(partition.index)
            if skip is not None and event.position >= skip.position:
                return overflow
        account = self._accounts.get(tenant)
        if account is None or self._budget.allows_flow(account, EVENT_OVERHEAD_BYTES + len(event.payload)):
            return self._make(tenant, group)
        return overflow or self._make(tenant, OVERFLOW)

    def overflow_of(self, tenant: str) -> Flow:
        return self._flows.get((tenant, OVERFLOW)) or self._make(tenant, OVERFLOW)

    @property
    def is_crowded(self) -> bool:
        """Whether there are so many flows that idle ones must be dropped."""
        return len(self._flows) > self._budget.flows_kept

    def drop_idle(self, flows: Iterable[Flow]) -> None:
        """Drop those of the flows that are idle."""
        for flow in flows:
            if flow.idle and self._flows.pop((flow.tenant.name, flow.group), None) is not None:
                self.paused -= flow.paused
                account = flow.account
                account.flows -= 1
                if not account.flows:
                    del self._accounts[account.name]

    def update_paused_share(self) -> None:
        """Count the paused flows again, and divide their share of memory."""
        self.paused = sum(flow.paused for flow in self._flows.values())
        self._budget.split_paused_share(self.paused)

    def adopt(self, tenant: str) -> list[Flow]:
        """Apply the new policy of a tenant to its flows. Returns them."""
        policy = self._tenants.policy(tenant)
        flows = [flow for (name, _), flow in self._flows.items() if name == tenant]
        for flow in flows:
            flow.adopt(policy)
        return flows

    def _make(self, tenant: str, group: str) -> Flow:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant)
        account.flows += 1
        flow = self._flows[tenant, group] = self._new(tenant, group, account)
        if flow.paused:
            self.paused += 1
            self._budget.split_paused_share(self.paused)
            self._on_paused_flow()
        return flow

    def _new(self, tenant: str, group: str, account: Account) -> Flow:
        flow = Flow(self._tenants.policy(tenant), group, self._channel_for(group), account)
        if self.is_held(flow):
            flow.paused = True
            flow.update_cap()
        return flow

    def is_held(self, flow: Flow) -> bool:
        """Whether attempts of the flow have to wait for the end of a pause, or for a handler."""
        return self.held.holds(flow.tenant.name, flow.group) or self.lacks_handler(flow.group)

    def _group(self, event: Event) -> str:
        stem = stem_of(event.to)
        group = self._groups.get(stem)
        if group is None:
            group = _group_of(event.to)
            if len(self._groups) >= _STEMS_KEPT:
                self._groups.clear()
            self._groups[stem] = group
        return group


def _group_of(target: str) -> str:
    try:
        return group_of(target)
    except EverbellError:
        # The target was valid when it was scheduled. If the rules changed since, the event must still reach an end.
        return target
