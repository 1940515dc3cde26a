"""Outcomes: every attempt that is over becomes a stored change, and only then does the event move on.

The next event of a key starts after the end of the one before it is durable, so a crash between the two can repeat
the last delivery but never reorder the key. What nobody waits for, the end of an event without a key, may wait for
others for a moment: ten events due in each millisecond would have to share their fsync with nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import assert_never

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.letter import is_letter
from everbell.core.retry import Outcome
from everbell.core.verdict import Again, Dead, Ended, delivered, expired, sent_off, verdict
from everbell.engine.entry import Entry, Phase
from everbell.engine.floor import Floor
from everbell.engine.lanes import NOBODY, Lanes
from everbell.engine.meter import Meter
from everbell.engine.scribe import GROUP_CHANGES_MAX, Scribe
from everbell.entropy import Entropy
from everbell.stores.port import Add, Block, Change, Finish, Move

GATHER_S = 0.005
"""How long an end for which nobody waits may wait for others, unless something is written anyway."""
_GATHERED_MAX = 256

_Settled = tuple[Entry, Event | None, bool]
"""Once an outcome is stored: the entry that leaves memory, the attempt or occurrence that comes next, and whether the
next of its key may go. A plain tuple, since one is made for every event."""


class Outcomes:
    """Turns outcomes into changes, those of one turn of the loop into one unit."""

    def __init__(
        self, clock: Clock, entropy: Entropy, scribe: Scribe, floor: Floor, lanes: Lanes, meter: Meter
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._scribe = scribe
        self._floor = floor
        self._lanes = lanes
        self._meter = meter
        self.place_beside: Callable[[Event, int], Event] = lambda event, now: event
        """Makes an event of an occurrence that goes its own way."""
        self.place_letter: Callable[[Event, str, int], Event] = lambda dead, to, now: dead
        """Makes the letter that tells of a dead event."""
        self._changes: list[Change] = []
        self._ended: list[Entry] = []
        """Those that just leave memory, once their end is stored."""
        self._settled: list[_Settled] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = False

    def settled(self, entries: Sequence[Entry], outcome: Outcome) -> None:
        """Attempts are over, with the same outcome."""
        now = self._clock.now()
        if outcome.result == "delivered":
            entries = self._end_plain(entries, outcome, now)
        for entry in entries:
            if entry.doomed:
                # Cancelled meanwhile. The key goes on once the cancel is stored and the attempt is over, whichever is
                # later.
                if entry.phase is Phase.GONE:
                    self._lanes.ended(entry)
                    entry.wake_waiters()
                else:
                    entry.unheard = outcome
            elif entry.phase is not Phase.GONE:  # If it is, its partition is another node's now, which tries again.
                self._judge(entry, outcome, now)

    def _judge(self, entry: Entry, outcome: Outcome, now: int) -> None:
        judged = verdict(
            entry.event, entry.flow.tenant, outcome, entry.attempt, entry.started_at, now, self._entropy.jitter()
        )
        match judged:
            case Ended():
                self._end(entry, judged, now)
            case Again(event=again):
                self._meter.retried += 1
                self._fail(entry, again, blocks=True)
            case Dead(event=dead):
                self._meter.dead += 1
                to = entry.tenant.dead_letter_to
                letter = None if to is None or is_letter(dead) else self.place_letter(dead, to, now)
                self._fail(entry, dead, blocks=entry.tenant.on_dead == "block", letter=letter)
            case _:
                assert_never(judged)

    def _end_plain(self, entries: Sequence[Entry], outcome: Outcome, now: int) -> list[Entry]:
        """Collect the ends of those that were delivered, come once and have no key; returns the others.

        That is what most events are, and this is `_judge` for them with everything left out that they do not need.
        """
        others: list[Entry] = []
        ended, changes, settling, gone = self._ended, self._changes, Phase.SETTLING, Phase.GONE
        for entry in entries:
            event = entry.event
            if event.key is not None or event.repeat is not None or entry.doomed or entry.phase is gone:
                others.append(entry)
                continue
            if len(changes) >= GROUP_CHANGES_MAX:
                self.flush()
                ended, changes = self._ended, self._changes
            record = delivered(event, outcome, entry.attempt, entry.started_at, now)
            changes.append(Finish(event, record, now + entry.flow.tenant.retention_ms))
            entry.phase = settling
            ended.append(entry)
        if len(changes) >= _GATHERED_MAX or self._floor.starved:  # The latter wait for room in memory.
            self._flush_soon()
        elif changes and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)
        self._meter.delivered += len(entries) - len(others)
        return others

    def expired(self, entry: Entry) -> None:
        """An entry came to its turn too late, or its occurrence goes its own way."""
        now = self._clock.now()
        sent = sent_off(entry.event, now)
        if sent is None:
            self._end(entry, expired(entry.event, now), now)
        else:
            self._send_off(entry, sent, now)

    def flush(self) -> None:
        """Submit what has been collected."""
        self._is_soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._changes:
            return
        changes, ended, settled = self._changes, self._ended, self._settled
        self._changes, self._ended, self._settled = [], [], []
        self._scribe.submit(changes, lambda _: self._stored(ended, settled), must=True)

    def _flush_soon(self) -> None:
        """Submit it, with whatever else comes in this turn of the loop."""
        if not self._is_soon:
            self._is_soon = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _end(self, entry: Entry, judged: Ended, now: int) -> None:
        if judged.record.status == "delivered":
            self._meter.delivered += 1
        else:
            self._meter.expired += 1
        event = entry.event
        self._meter.fared(event.course, judged.record.course)
        change = Finish(event, judged.record, now + entry.flow.tenant.retention_ms, judged.following)
        self._collect(entry, change, judged.following, event.key is not None)

    def _send_off(self, entry: Entry, sent: Ended, now: int) -> None:
        """The occurrence becomes an event of its own in the same write that lets the recurring one go on."""
        event, comes = entry.event, sent.following
        self._meter.fared(event.course, sent.record.course)
        occurrence = self.place_beside(event, now)
        change: Change = Finish(event, sent.record, now + entry.flow.tenant.retention_ms)
        if comes is not None:
            change = Move(event, comes)
        self._collect(entry, change, comes, False, (Add(occurrence, follows=True),))
        self._settled.append((entry, occurrence, False))

    def _fail(self, entry: Entry, after: Event, *, blocks: bool, letter: Event | None = None) -> None:
        """The attempt failed. Its key, if it has one, waits for it, or goes on without it.

        A letter that tells of its death is stored in the same unit.
        """
        arrives = after if after.state == "scheduled" else letter
        letters = () if letter is None else (Add(letter, follows=True),)
        if after.key is None or not blocks:
            self._collect(entry, Move(entry.event, after), arrives, after.key is not None, letters)
            return
        marks, followers = self._lanes.failed(entry)
        entry.blocks_key = False
        self._collect(entry, Move(entry.event, after), arrives, False, (*marks, *letters))
        self._settled.extend((follower, None, False) for follower in followers)
        # At once: the lane is gone from memory, so whoever asks the store about the key from now on must find the mark.
        self.flush()

    def _collect(
        self, entry: Entry, change: Change, arrives: Event | None, frees: bool, with_it: Sequence[Change] = ()
    ) -> None:
        """Add an outcome to the unit. What belongs together is added in one call, so no unit ends in between."""
        if len(self._changes) >= GROUP_CHANGES_MAX:
            self.flush()
        self._flush_soon()
        entry.phase = Phase.SETTLING
        self._changes.extend(with_it)
        self._changes.append(change)
        self._settled.append((entry, arrives, frees))
        if entry.blocks_key:
            event = entry.event
            assert event.key is not None, "only a key can be blocked"
            self._changes.append(Block(event.partition, event.tenant, event.key, NOBODY))

    def _stored(self, ended: list[Entry], settled: list[_Settled]) -> None:
        self._floor.forget_all(ended)
        forget = self._floor.forget
        for entry, arrives, frees in settled:
            forget(entry)
            if arrives is not None:
                self._arrive(arrives)
            if frees:
                self._lanes.ended(entry)

    def _arrive(self, event: Event) -> None:
        """The next attempt or occurrence.

        One that is due already takes its place in the line before the key goes on.
        """
        if event.key is None or event.run_at > self._clock.now() or self._floor.is_behind_others(event):
            self._floor.arrive(event)
        elif (late := self._floor.admit_to_lane(event)) is not None:
            self._lanes.enter(late)
