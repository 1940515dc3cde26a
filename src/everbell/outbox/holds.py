"""Tenants with rows that the engine cannot take at the moment, and when to try again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from msgspec import Struct

from everbell.errors import EverbellError

_log = logging.getLogger("everbell.outbox")

PAUSE_S = 0.05
PAUSE_S_MAX = 2.0


class Hold(Struct):
    """The pause of a tenant's rows from a number on."""

    low: int
    until_s: float
    pause_s: float
    why: str


class Holds:
    """The pauses grow from try to try, until a tenant's rows are taken."""

    def __init__(self, outbox: str) -> None:
        self._outbox = outbox
        self._on: dict[str, Hold] = {}
        self._ended: dict[str, Hold] = {}
        """Pauses that are over, of tenants with rows that were not taken since."""

    @property
    def tenants(self) -> list[str]:
        """The tenants with rows that must wait."""
        return list(self._on)

    @property
    def trouble(self) -> str | None:
        """Why rows of some tenant wait."""
        return next((hold.why for hold in (*self._on.values(), *self._ended.values())), None)

    def put(self, held: Mapping[str, tuple[int, EverbellError]], lowest: int, now_s: float) -> None:
        """Begin pauses. `lowest` is the smallest number that may still appear."""
        for tenant, (first, why) in held.items():
            before = self._ended.pop(tenant, None) or self._on.get(tenant)
            if before is None:
                _log.warning("%s: rows of %s wait, as they cannot be scheduled: %s", self._outbox, tenant, why)
            pause_s = PAUSE_S if before is None else min(before.pause_s * 2, PAUSE_S_MAX)
            pause_s = max(pause_s, min(why.retry_after_s or 0, PAUSE_S_MAX))
            # A row with a smaller number may appear during the pause, and is not looked for then.
            self._on[tenant] = Hold(min(first, lowest), now_s + pause_s, pause_s, str(why))

    def end(self, now_s: float) -> int | None:
        """End the pauses that are over; returns the number from which rows must be looked for again."""
        over = {tenant: hold for tenant, hold in self._on.items() if hold.until_s <= now_s}
        for tenant, hold in over.items():
            del self._on[tenant]
            self._ended[tenant] = hold
        return min((hold.low for hold in over.values()), default=None)

    def forget(self, tenants: Iterable[str]) -> None:
        """Rows of these tenants have been taken since their pauses."""
        for tenant in tenants:
            if self._ended.pop(tenant, None) is not None:
                _log.info("%s: rows of %s are scheduled again", self._outbox, tenant)

    def forget_ended(self) -> None:
        """No row is left of the tenants with a pause that is over."""
        self.forget(list(self._ended))

    def wait_s(self, now_s: float, longest_s: float) -> float:
        """The time until the next pause ends."""
        return min((max(hold.until_s - now_s, 0) for hold in self._on.values()), default=longest_s)
