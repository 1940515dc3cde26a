"""A partition on a node: whether this node owns it, how far it has been read, and which events were skipped."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from everbell.clock import Clock
from everbell.core.event import Event, position
from everbell.core.ids import SEQUENCE_MAX
from everbell.core.tenant import Tenants
from everbell.engine.agenda import NEVER
from everbell.engine.flow import Flow, Skip

# The largest difference between the clocks of two nodes. A dead owner may have sent an event this much early.
CLOCKS_APART_MS = 15_000

_NO_SKIPS: Mapping[Flow, Skip] = MappingProxyType({})


class Partition:
    """The state of a partition. It is data, not a task, so an idle partition costs nothing.

    This node owns the partition from `take` to `lose`. In between, `close` prepares to hand it over: this node still
    stores and changes events, but brings none to memory.

    Every unfinished event at or below `checkpoint` is in memory, or behind a `Skip`, or waiting behind its key's head.
    Nothing above `checkpoint` has been read, and `next_at` is a lower bound of the first time there. A partition that
    is closed or owned by another node brings no events to memory: its `next_at` is before all times.
    """

    __slots__ = (
        "_skips",
        "checkpoint",
        "epoch",
        "index",
        "is_open",
        "next_at",
        "quiet_ms_max",
        "taken_at",
        "taken_ms",
        "tenants",
    )

    def __init__(self, index: int, tenants: Tenants) -> None:
        self.index = index
        self.tenants = tenants
        self.epoch = 0
        """The epoch under which this node owns the partition. 0: this node does not own it."""
        self.is_open = False
        self.checkpoint = -1
        self.next_at = -1
        # The skips of each tenant. A tenant has few: other flows share the skip of its overflow.
        self._skips: dict[str, dict[Flow, Skip]] = {}
        self.taken_at = 0
        self.taken_ms = 0
        """When this node took the partition, on the clock of elapsed time."""
        self.quiet_ms_max = 0
        """How long after that requests of the last owner may be in flight at most. 0: none are."""

    def take(self, epoch: int, now: int, elapsed_ms: int, quiet_ms_max: int) -> None:
        """Own the partition from now on. Everything in it is unread."""
        self.epoch = epoch
        self.is_open = True
        self.checkpoint = -1
        self.next_at = 0
        self.taken_at = now
        self.taken_ms = elapsed_ms
        self.quiet_ms_max = quiet_ms_max

    def lose(self) -> None:
        """Stop owning the partition."""
        self.close()
        self.epoch = 0

    def close(self) -> None:
        """Bring no more events to memory."""
        self.is_open = False
        self.checkpoint = self.next_at = -1
        for flow in [flow for skips in self._skips.values() for flow in skips]:
            self.unskip(flow)

    def read_to(self, run_at: int, next_at: int | None) -> None:
        """Record that everything up to and including `run_at` has been read."""
        self.checkpoint = max(self.checkpoint, position(run_at, SEQUENCE_MAX))
        self.next_at = NEVER if next_at is None else next_at

    def covers(self, event: Event, near_at: int) -> bool:
        """Whether an event that was just stored must be pushed to memory. If not, the loader will find it.

        It must if the loader has read past its place. If the loader has not, but no unread event is stored before this
        one, the checkpoint moves up to a near event: an idle partition need not be read again.
        """
        run_at = event.run_at
        if position(run_at, event.sequence) <= self.checkpoint:
            return True
        if run_at < self.next_at:
            if run_at <= near_at:
                self.checkpoint = position(run_at, SEQUENCE_MAX)
                return True
            self.next_at = run_at
        return False

    def is_unread(self, event: Event) -> bool:
        """Whether the loader has not read the place of the event yet, and earlier events may be stored."""
        return event.position > self.checkpoint and event.run_at >= self.next_at

    def expect(self, run_at: int) -> None:
        """Record the time of an event in the far future, which the loader will find."""
        self.next_at = min(self.next_at, run_at)

    def quiet_ms(self, elapsed_ms: int, tenant: str, to: str = "") -> int:
        """How long requests of the last owner may still be in flight, because it died.

        None of them may arrive after a request of this node for the same event.
        """
        if not self.quiet_ms_max:
            return 0
        return self.taken_ms + min(self.tenants.sending_ms(tenant, to), self.quiet_ms_max) - elapsed_ms

    def wait_ms(self, event: Event, clock: Clock) -> int:
        """How long the head of a key must wait before it is dispatched."""
        wait_ms = 0
        if event.run_at <= self.taken_at + CLOCKS_APART_MS:
            wait_ms = self.quiet_ms(clock.elapsed_ms(), event.tenant, event.to)
        if event.state == "waiting":
            # An earlier owner sent the event to the line when it was due by its clock, which may be ahead of ours.
            wait_ms = max(wait_ms, event.run_at - clock.now())
        return wait_ms

    @property
    def has_skips(self) -> bool:
        return bool(self._skips)

    def skips_of(self, tenant: str) -> Mapping[Flow, Skip]:
        """The skips of the tenant's flows."""
        return self._skips.get(tenant, _NO_SKIPS)

    def skip_for(self, event: Event, flow: Flow, besides: Flow | None = None) -> Skip | None:
        """The skip behind which the event of `flow` must stay, if any. The skip of `besides` does not count."""
        skips = self._skips.get(event.tenant)
        if skips is None:
            return None
        own = skips.get(flow)
        if own is not None and flow is not besides and event.position >= own.position:
            return own
        if event.key is not None:
            for other, skip in skips.items():
                if other is not besides and skip.concerns(event):
                    return skip
        return None

    def skip_of_key(self, event: Event) -> Skip | None:
        """The skip behind which an earlier event of the same key may be, if any. Each tenant has its own keys."""
        return next((skip for skip in self.skips_of(event.tenant).values() if skip.concerns(event)), None)

    def skip(self, event: Event, flow: Flow) -> None:
        """Leave the event in the store, behind the flow's skip."""
        skip = flow.skips.get(self.index)
        if skip is None:
            flow.account.skipped_flows += not flow.skips
            skip = flow.skips[self.index] = Skip(event.position)
            self._skips.setdefault(flow.tenant.name, {})[flow] = skip
        skip.add(event)
        flow.note_skipped(event)

    def unskip(self, flow: Flow) -> None:
        """Remove the flow's skip, because none of its events is skipped any more."""
        skips = self._skips[flow.tenant.name]
        del skips[flow]
        if not skips:
            del self._skips[flow.tenant.name]
        del flow.skips[self.index]
        if not flow.skips:
            flow.account.skipped_flows -= 1
            flow.stems.clear()

    def unwanted(self, besides: Flow | None = None) -> list[tuple[str, str]]:
        """The (tenant, stem of the target) of skipped events, which a store need not read.

        Behind an overflow are also events of flows that have a skip of their own, at a later position. So its own
        tenant's events are all read.
        """
        overflow_of = besides.tenant.name if besides is not None and besides.is_overflow else None
        tenants = (skips for tenant, skips in self._skips.items() if tenant != overflow_of)
        flows = (flow for skips in tenants for flow in skips if flow is not besides)
        return [(flow.tenant.name, stem) for flow in flows for stem in flow.stems]
