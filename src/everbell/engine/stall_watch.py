"""Notices that due events could start, and none does.

Every part of the engine that hands an event on could lose its wake-up because of a bug. Then due events wait for ever,
while the loop runs and the store works. This watch looks at the three places in which a due event waits for the engine
alone: not read from the store, not rung by the agenda, not started by the dispatcher. If the same event is first in
line at each look for ten seconds, and the dispatcher had no turn in that time, the engine has stalled.

Events that wait for something else do not count: for a slot of a slow target, a worker, a pause, a breaker, a rate, a
lease, or a store that does not answer. A restart would not help them.
"""

from __future__ import annotations

import logging

from everbell.clock import Clock
from everbell.engine.agenda import Agenda
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.loader import Loader
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import StoreWriter

_log = logging.getLogger("everbell.engine")

STALLED_MS = 10_000
# A gap between two looks counts as this much at most: after a pause of the whole process, the engine needs a moment.
_GAP_MS_MAX = 5_000


class StallWatch:
    """Looks whenever it is asked, which the upkeep does every few seconds."""

    def __init__(
        self,
        clock: Clock,
        agenda: Agenda,
        dispatcher: Dispatcher,
        memory: WorkingSet,
        loader: Loader,
        writer: StoreWriter,
    ) -> None:
        self._clock = clock
        self._agenda = agenda
        self._dispatcher = dispatcher
        self._memory = memory
        self._loader = loader
        self._writer = writer
        self._seen: object = None
        self._looked_ms = clock.elapsed_ms()
        self._for_ms = 0
        self.reason: str | None = None
        """Why due events do not start; None while all is well."""

    def look(self) -> str | None:
        """Look again, and return the reason."""
        now_ms = self._clock.elapsed_ms()
        passed_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        first = self._first_waiting()
        seen = None if first is None else (*first, self._dispatcher.turns)
        same = seen is not None and seen == self._seen
        self._seen = seen
        self._for_ms = self._for_ms + min(passed_ms, _GAP_MS_MAX) if same else 0
        was, self.reason = self.reason, None
        if first is not None and self._for_ms >= STALLED_MS:
            self.reason = f"events are due, and none has started for {self._for_ms // 1_000} s: {first[0]}"
        if (was is None) != (self.reason is None):
            _log.error("%s", self.reason or "due events start again")
        return self.reason

    def _first_waiting(self) -> tuple[str, int] | None:
        """Where a due event waits for the engine alone, and a number that tells it from others."""
        if self._writer.trouble is not None:
            return None
        now = self._clock.now()
        ready = [
            flow.ready[0].event.sequence for flow in self._memory.flows.all() if self._dispatcher.could_start(flow)
        ]
        if ready:
            return "they are ready, but the dispatcher does not start them", min(ready)
        if self._agenda.first_at <= now:
            return "they are in memory, but do not ring", self._agenda.first_at
        next_at = self._loader.next_at()
        return ("they are not read from the store", next_at) if next_at <= now else None
