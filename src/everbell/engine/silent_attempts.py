"""Attempts whose end no channel reports.

Every channel has to settle each attempt within the tenant's deadline. If a bug breaks this rule, the event, and all
later events of its key, would wait for ever. So the engine ends such an attempt some time after its deadline. The event
is retried by its policy, because the receiver may have got it or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from everbell.clock import Clock
from everbell.core.retry import Outcome
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry

_log = logging.getLogger("everbell.engine")

_CHECK_MS = 10_000
# How long after its deadline an attempt is given up.
_GRACE_MS = 30_000


class SilentAttempts:
    """Looks for attempts that have been in flight for too long."""

    def __init__(self, clock: Clock, dispatcher: Dispatcher, entries: Iterable[Entry]) -> None:
        """`entries`: all entries in memory, now and later, as from `dict.values`."""
        self._clock = clock
        self._dispatcher = dispatcher
        self._entries = entries
        self._checked_ms = clock.elapsed_ms()
        self._waited_ms: dict[Entry, int] = {}

    def check(self) -> None:
        """End the attempts that are too long in flight. This looks at all entries, so it is done seldom."""
        passed_ms = self._clock.elapsed_ms() - self._checked_ms
        if passed_ms < _CHECK_MS:
            return
        self._checked_ms += passed_ms
        # A process that was stopped for a while must give its channels the time to report.
        passed_ms = min(passed_ms, 2 * _CHECK_MS)
        before = self._waited_ms
        # A channel that holds deliveries has deadlines of its own: the leases of workers.
        in_flight = (entry for entry in self._entries if entry.in_flight and not entry.flow.channel.holds)
        self._waited_ms = {
            entry: before[entry] + passed_ms if entry in before else 0
            for entry in (in_flight if self._dispatcher.in_flight else ())
        }
        for entry, waited_ms in list(self._waited_ms.items()):
            if waited_ms > entry.tenant.timeout_ms + _GRACE_MS:
                _log.error("no channel reported attempt %d of event %s: it is given up", entry.attempt, entry.event.id)
                self._dispatcher.settle_all((entry,), Outcome("lost", "Everbell lost track of the attempt"))
