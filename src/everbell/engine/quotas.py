"""Quotas: the number of events that a tenant may have pending, and the number that it may schedule in a second.

Both limits may be exceeded a little. A tenant without limits costs almost nothing.

- `rate` is a token bucket that holds the tokens of one second. A request is accepted while the bucket is not empty, and
  may overdraw it: a large batch passes, and the next request waits until the bucket has filled up. Each node has a
  bucket of its own.
- `pending` is compared with the store's count, which is read at most once a second. Between reads, this node adds the
  events that it accepted. With several nodes the limit may be exceeded by events that other nodes accepted meanwhile.

Events that the engine makes count, too: occurrences that may overlap, and dead letters. A dead letter is never refused.
An occurrence above the limit of pending events does not become an event of its own: the recurring event is delivered in
its place, so occurrences stop to overlap until there is room. A dry run counts for the rate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from everbell.clock import Clock
from everbell.core.tenant import Limits, Tenants
from everbell.engine.notices import Notices
from everbell.errors import Throttled
from everbell.stores.port import Counts

_KEPT_MAX = 10_000
# The age up to which a count may accept an event.
_COUNT_MS = 1_000
# The age up to which a count may refuse an event.
_REFUSE_MS = 50
_PENDING_RETRY_S = 5


class _Use:
    """The part of its limits that a tenant has used."""

    __slots__ = ("counted_ms", "filled_ms", "made", "made_since", "pending", "tokens")

    def __init__(self, tokens: float, now_ms: int) -> None:
        self.tokens = tokens
        self.filled_ms = now_ms
        self.pending = 0
        self.counted_ms: int | None = None
        self.made = 0
        """The number of events that the engine made since the counts in `made_since`."""
        self.made_since: object = None


class Quotas:
    """Tells how many events a tenant may schedule."""

    def __init__(
        self,
        tenants: Tenants,
        clock: Clock,
        counts: Callable[[], Awaitable[Mapping[str, Counts]]],
        notices: Notices,
        latest: Callable[[], Mapping[str, Counts]] = dict,
    ) -> None:
        """`counts` asks the store, and `latest` returns the counts of some seconds ago without asking."""
        self._latest = latest
        self._notices = notices
        self._policy = tenants.policy
        self._elapsed_ms = clock.elapsed_ms
        self._counts = counts
        self._uses: dict[str, _Use] = {}

    def bind(self, tenant: str) -> bool:
        """Whether the tenant has limits."""
        limits = self._policy(tenant).limits
        return limits.rate is not None or limits.pending is not None

    async def room(self, tenant: str, wanted: int) -> tuple[int, Throttled | None]:
        """The number of wanted events that may be stored, and the error for the others. Raises `StoreError`."""
        limits = self._policy(tenant).limits
        use = self._use(tenant, limits)
        if limits.rate is not None and not self._has_tokens(use, limits.rate):
            wait_s = max(1, -int(use.tokens // limits.rate))
            return 0, self._refusal(tenant, f"may schedule {limits.rate} events a second", wait_s)
        room = wanted if limits.pending is None else await self._room_left(tenant, use, limits.pending, wanted)
        if limits.rate is not None:
            use.tokens -= room
        use.pending += room
        if room == wanted:
            return room, None
        return room, self._refusal(tenant, f"may have {limits.pending} events pending", _PENDING_RETRY_S)

    def spend(self, tenant: str, count: int = 1) -> None:
        """Count events that the engine made, or attempts of dry runs, for the rate."""
        limits = self._policy(tenant).limits
        if limits.rate is not None:
            use = self._use(tenant, limits)
            self._has_tokens(use, limits.rate)  # The bucket is filled up to now.
            use.tokens -= count

    def check_rate(self, tenant: str) -> None:
        """Raises `Throttled` if the tenant has used up its rate."""
        limits = self._policy(tenant).limits
        if limits.rate is not None and not self._has_tokens(use := self._use(tenant, limits), limits.rate):
            wait_s = max(1, -int(use.tokens // limits.rate))
            raise self._refusal(tenant, f"may schedule {limits.rate} events a second", wait_s)

    def make_one(self, tenant: str) -> bool:
        """Count an occurrence that shall become an event of its own. False: the tenant has too many events pending."""
        limits = self._policy(tenant).limits
        if limits.pending is not None:
            use, latest = self._use(tenant, limits), self._latest()
            if latest is not use.made_since:
                use.made, use.made_since = 0, latest
            counted = latest.get(tenant)
            if use.made + (0 if counted is None else counted.pending) >= limits.pending:
                self._refusal(tenant, f"may have {limits.pending} events pending", _PENDING_RETRY_S)
                return False
            use.made += 1
            use.pending += 1
        self.spend(tenant)
        return True

    def _refusal(self, tenant: str, limit: str, wait_s: int) -> Throttled:
        refusal = f"tenant {tenant!r} {limit}"
        self._notices.tell("exhausted quotas", tenant, f"{refusal}; events above that are refused")
        return Throttled(refusal, wait_s)

    def _use(self, tenant: str, limits: Limits) -> _Use:
        use = self._uses.pop(tenant, None) or _Use(float(limits.rate or 0), self._elapsed_ms())
        # The least recently used tenant is forgotten first: callers may invent any number of tenant names.
        self._uses[tenant] = use
        if len(self._uses) > _KEPT_MAX:
            del self._uses[next(iter(self._uses))]
        return use

    def _has_tokens(self, use: _Use, rate: int) -> bool:
        now_ms = self._elapsed_ms()
        use.tokens = min(float(rate), use.tokens + (now_ms - use.filled_ms) * rate / 1_000)
        use.filled_ms = now_ms
        return use.tokens > 0

    async def _room_left(self, tenant: str, use: _Use, limit: int, wanted: int) -> int:
        if self._is_older(use, _COUNT_MS) or (use.pending + wanted > limit and self._is_older(use, _REFUSE_MS)):
            counted = (await self._counts()).get(tenant)
            use.pending = 0 if counted is None else counted.pending
            use.counted_ms = self._elapsed_ms()
        return max(0, min(wanted, limit - use.pending))

    def _is_older(self, use: _Use, age_ms: int) -> bool:
        return use.counted_ms is None or self._elapsed_ms() - use.counted_ms >= age_ms
