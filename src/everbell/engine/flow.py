"""Flows, and the skips of events that have no room.

A flow is everything that one tenant sends to one target group. The flows of all tenants share one `Budget`, as
`engine/account.py` describes.

A paused flow may keep a few events in memory, so that a small backlog continues in order as soon as the flow is
resumed. All paused flows together may hold an eighth of the memory, because a pause may last for any time.

Events without room stay in the store. For each partition a `Skip` remembers the position from which the flow's events
were skipped, and the first time of each skipped key. The loader reads from there when the flow has room again.

A tenant with a great number of targets has no flow and no skip for each of them. Its *overflow* is a flow without
events in memory: behind its skips are events of all targets that have no flow, or no skip, of their own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from everbell.channels.port import Channel
from everbell.core.event import Event
from everbell.core.target import stem_of
from everbell.core.tenant import Tenant
from everbell.engine.account import Account
from everbell.engine.breaker import Breaker
from everbell.engine.skipped_keys import SkippedKeys
from everbell.engine.token_bucket import TokenBucket

if TYPE_CHECKING:
    from everbell.engine.entry import Entry

# The approximate cost of an event in memory, in addition to its payload.
EVENT_OVERHEAD_BYTES = 1_000

_STEMS_MAX = 16

OVERFLOW = ""
"""The group of a tenant's overflow. No target has it."""


class Skip:
    """The events of a flow in one partition that stay in the store: all from `position` on that are not in memory."""

    __slots__ = ("keys", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.keys: SkippedKeys | None = None

    def add(self, event: Event) -> None:
        """Skip an event. Later events of its key must not overtake it, even if they have another target."""
        self.position = min(self.position, event.position)
        if event.key is not None:
            if self.keys is None:
                self.keys = SkippedKeys()
            self.keys.add(event.tenant, event.key, event.run_at)

    def concerns(self, event: Event) -> bool:
        """Whether an earlier event of the same key may have been skipped."""
        if event.key is None or self.keys is None or event.position < self.position:
            return False
        first_at = self.keys.first_at(event.tenant, event.key)
        return first_at is not None and event.run_at >= first_at

    def has_key(self, tenant: str, key: str) -> bool:
        """Whether an event of the key may have been skipped."""
        return self.keys is not None and self.keys.first_at(tenant, key) is not None


class Flow:
    """Everything that one tenant sends to one target group: only counters. The dispatcher and the loader use them."""

    __slots__ = (
        "account",
        "breaker",
        "cap",
        "channel",
        "group",
        "held_bytes",
        "in_flight",
        "in_ring",
        "own_bytes",
        "pace",
        "paused",
        "ready",
        "resumes_at",
        "skipped_bytes",
        "skips",
        "slots",
        "stems",
        "tenant",
        "throttled",
    )

    def __init__(self, tenant: Tenant, group: str, channel: Channel, account: Account) -> None:
        self.account = account
        self.group = group
        self.channel = channel
        self.breaker: Breaker | None = None
        self.pace: TokenBucket | None = None
        self.throttled = False
        """The flow has used up its rate, and waits for a timer."""
        self.resumes_at = 0
        """When that timer fires, while the flow is throttled."""
        self.paused = False
        """The tenant or the target of the flow is paused."""
        self.in_flight = 0
        self.adopt(tenant)
        self.held_bytes = 0
        self.own_bytes = 0
        """The part of `held_bytes` that pays for the flow itself."""
        self.slots = 0 if channel.holds else 1
        """The number of slots that an attempt takes of those of the node and the tenant."""
        self.ready: deque[Entry] = deque()
        self.in_ring = False
        self.skips: dict[int, Skip] = {}
        self.skipped_bytes = 0
        """The cost of the last event that had no room."""
        self.stems: set[str] = set()
        """Some stems of the targets of skipped events. A store leaves out rows with these stems when it reads."""

    def adopt(self, tenant: Tenant) -> None:
        """Apply a new policy of the tenant."""
        self.tenant = tenant
        if tenant.rate != (None if self.pace is None else self.pace.rate):
            self.pace = None if tenant.rate is None else TokenBucket(tenant.rate)
            self.throttled = False
        if tenant.breaker != (None if self.breaker is None else self.breaker.policy):
            self.breaker = None if tenant.breaker is None else Breaker(tenant.breaker)
        self.update_cap()

    def update_cap(self) -> None:
        """Compute how many attempts may be in flight: none while the flow waits, one more while it is probed."""
        state = "closed" if self.breaker is None else self.breaker.state
        if self.paused or self.throttled or state == "open":
            self.cap = 0
        elif state == "probing":
            self.cap = self.in_flight + 1
        else:
            self.cap = self.full_cap

    @property
    def full_cap(self) -> int:
        """The number of attempts that may be in flight while nothing holds the flow back."""
        tenant, channel = self.tenant, self.channel
        return 1 << 60 if channel.holds else tenant.in_flight * max(tenant.batch, channel.together)

    def note_skipped(self, event: Event) -> None:
        """Record that an event of this flow stays in the store."""
        if event.key is None and not self.is_overflow and len(self.stems) < _STEMS_MAX:
            self.stems.add(stem_of(event.to))

    @property
    def is_overflow(self) -> bool:
        return self.group == OVERFLOW

    @property
    def idle(self) -> bool:
        """Whether no event of the flow is in memory or skipped, so that the flow can be dropped and made again.

        An open breaker does not keep it: a tenant with any number of dead targets would fill the memory with them.
        """
        return not (self.held_bytes or self.skips or self.in_flight or self.in_ring or self.throttled)
