"""Outcomes: every attempt that is over becomes a stored change, and only then does the event move on.

The next event of a key starts after the end of the one before it is durable, so a crash between the two can repeat the last
delivery but never reorder the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.retry import Outcome
from everbell.core.verdict import Again, Dead, Ended, expired, verdict
from everbell.engine.entry import Entry, Phase
from everbell.engine.floor import Floor
from everbell.engine.lanes import NOBODY, Lanes
from everbell.engine.meter import Meter
from everbell.engine.scribe import Scribe
from everbell.entropy import Entropy
from everbell.stores.port import Block, Change, Finish, Move


class Outcomes:
    """Turns outcomes into changes."""

    def __init__(
        self, clock: Clock, entropy: Entropy, scribe: Scribe, floor: Floor, lanes: Lanes, meter: Meter
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._scribe = scribe
        self._floor = floor
        self._lanes = lanes
        self._meter = meter

    def settled(self, entry: Entry, outcome: Outcome) -> None:
        """An attempt is over."""
        if entry.doomed:
            # Cancelled meanwhile. The key goes on once the cancel is stored and the attempt is over, whichever is later.
            if entry.phase is Phase.GONE:
                self._lanes.ended(entry)
            return
        now = self._clock.now()
        judged = verdict(
            entry.event, entry.tenant, outcome, entry.attempt, entry.started_at, now, self._entropy.jitter()
        )
        match judged:
            case Ended():
                self._end(entry, judged, now)
            case Again(event=again):
                self._meter.retried += 1
                self._keep_waiting(entry, again)
            case Dead(event=dead):
                self._meter.dead += 1
                if entry.event.key is not None and entry.tenant.on_dead == "block":
                    self._keep_waiting(entry, dead)
                else:
                    self._store(entry, [Move(entry.event, dead)], lambda: self._lanes.ended(entry))
            case _:
                assert_never(judged)

    def expired(self, entry: Entry) -> None:
        """An entry came to its turn too late."""
        now = self._clock.now()
        self._end(entry, expired(entry.event, now), now)

    def _end(self, entry: Entry, judged: Ended, now: int) -> None:
        if judged.record.status == "delivered":
            self._meter.delivered += 1
        else:
            self._meter.expired += 1
        finish = Finish(entry.event, judged.record, now + entry.tenant.retention_ms, judged.following)
        self._store(entry, [finish], lambda: self._ended(entry, judged.following))

    def _ended(self, entry: Entry, following: Event | None) -> None:
        if following is not None:
            self._floor.arrive(following)
        if entry.event.key is not None:
            self._lanes.ended(entry)

    def _keep_waiting(self, entry: Entry, after: Event) -> None:
        """The event failed; if it has a key, the key waits for it."""
        marks = [] if after.key is None else self._lanes.failed(entry)
        entry.blocks_key = False
        arrives = after.state == "scheduled"
        self._store(entry, [*marks, Move(entry.event, after)], lambda: self._floor.arrive(after) if arrives else None)

    def _store(self, entry: Entry, changes: list[Change], then: Callable[[], None]) -> None:
        entry.phase = Phase.SETTLING
        if entry.blocks_key:
            event = entry.event
            assert event.key is not None, "only a key can be blocked"
            changes.append(Block(event.partition, event.tenant, event.key, NOBODY))

        def stored(_: object) -> None:
            self._floor.forget(entry)
            then()

        self._scribe.submit(changes, stored, must=True)
