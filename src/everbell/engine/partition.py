"""A partition on a node: whether it is owned here, how far it has been read, and what was left behind on the way."""

from __future__ import annotations

from everbell.core.event import Event, position
from everbell.core.ids import SEQUENCE_MAX
from everbell.engine.agenda import NEVER
from everbell.engine.flow import Flow, Skip

CLOCKS_APART_MS = 5_000
"""How far the clocks of two nodes may differ: so far ahead of time a dead owner may have sent something."""


class Partition:
    """Data, not a task: an idle partition costs nothing.

    It is owned here from `take` to `lose`. In between it may be closed, when it is about to be handed over: then events
    are still stored and changed here, but none is brought to memory any more.

    Every unfinished event at or below `checkpoint` is in memory, or behind a `Skip`, or waiting behind its key's head.
    Above it, nothing has been read; `next_at` is a lower bound of the first time there. Of a partition that is closed
    or owned elsewhere nothing is brought to memory: no time lies before its `next_at`.
    """

    __slots__ = ("checkpoint", "epoch", "index", "is_open", "next_at", "quiet_until_ms", "skips", "taken_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.epoch = 0
        """Under which it is owned here; 0: it is not."""
        self.is_open = False
        self.checkpoint = -1
        self.next_at = -1
        self.skips: dict[Flow, Skip] = {}
        self.taken_at = 0
        self.quiet_until_ms = 0
        """Until then, on the clock of elapsed time, requests of the last owner may be on their way; 0: none."""

    def take(self, epoch: int, now: int, quiet_until_ms: int) -> None:
        """This node owns it from now on: everything in it is still to be read."""
        self.epoch = epoch
        self.is_open = True
        self.checkpoint = -1
        self.next_at = 0
        self.taken_at = now
        self.quiet_until_ms = quiet_until_ms

    def lose(self) -> None:
        """This node no longer owns it."""
        self.close()
        self.epoch = 0

    def close(self) -> None:
        """Bring nothing more to memory."""
        self.is_open = False
        self.checkpoint = self.next_at = -1
        for flow in list(self.skips):
            self.unskip(flow)

    def read_to(self, run_at: int, next_at: int | None) -> None:
        """Everything up to and including `run_at` has been read."""
        self.checkpoint = max(self.checkpoint, position(run_at, SEQUENCE_MAX))
        self.next_at = NEVER if next_at is None else next_at

    def covers(self, event: Event, near_at: int) -> bool:
        """Whether an event that was just stored must be pushed to memory; if not, the loader will find it.

        It must if the loader has passed its place. Where the loader has not been, but nothing is stored before the
        event either, the checkpoint moves up to a near event by itself: an idle partition need not be read again.
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

    def expect(self, run_at: int) -> None:
        """The same for an event that is far: the loader will find it."""
        self.next_at = min(self.next_at, run_at)

    def quiet_ms(self, run_at: int, elapsed_ms: int) -> int:
        """How long the head of a key has to wait because the last owner died, and may have sent this one: a request
        that is on its way must not come after ours."""
        if not self.quiet_until_ms or run_at > self.taken_at + CLOCKS_APART_MS:
            return 0
        return self.quiet_until_ms - elapsed_ms

    def skip_for(self, event: Event, flow: Flow, besides: Flow | None = None) -> Skip | None:
        """The skip that the event of `flow` has to stay behind, if any, `besides` not counted."""
        for other, skip in self.skips.items():
            if other is besides:
                continue
            if other is flow and event.position >= skip.position:
                return skip
            if event.key is not None and other.tenant.name == event.tenant and skip.concerns(event):
                return skip
        return None

    def skip_of_key(self, event: Event) -> Skip | None:
        """The skip behind which an earlier event of the same key may be, if any. Keys are a tenant's own: what others
        left behind, however much it is, concerns nobody else."""
        for flow, skip in self.skips.items():
            if flow.tenant.name == event.tenant and skip.concerns(event):
                return skip
        return None

    def leave(self, event: Event, flow: Flow) -> None:
        """Leave the event in the store, behind the flow's skip."""
        skip = self.skips.get(flow)
        if skip is None:
            skip = self.skips[flow] = flow.skips[self.index] = Skip(event.position)
        skip.leave(event)
        flow.leave(event)

    def unskip(self, flow: Flow) -> None:
        """Nothing of the flow is left behind any more."""
        del self.skips[flow]
        del flow.skips[self.index]
        if not flow.skips:
            flow.stems.clear()

    def unwanted(self, besides: Flow | None = None) -> list[tuple[str, str]]:
        """The (tenant, stem of the target) of events that stay behind a skip, so that nobody need read them."""
        return [(flow.tenant.name, stem) for flow in self.skips if flow is not besides for stem in flow.stems]
