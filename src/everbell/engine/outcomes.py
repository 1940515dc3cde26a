"""Outcomes: the end of every attempt becomes a stored change. The event moves on only after that change is stored.

The next event of a key starts after the end of the previous one is durable. So a crash between the two can repeat the
last delivery, but never reorder the key. Nothing waits for the end of an event without a key, so it may wait a moment
for other outcomes to share an fsync: otherwise every few milliseconds would cost an fsync for a few events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import assert_never

from everbell.clock import Clock
from everbell.core.dead_letter import is_letter
from everbell.core.event import Event
from everbell.core.retry import Outcome
from everbell.core.verdict import Again, Dead, OccurrenceEnded, SentOff, delivered, unjudged, verdict
from everbell.engine.entry import Entry, Phase
from everbell.engine.intake import Intake
from everbell.engine.kept_ends import KeptEnds
from everbell.engine.marks import NO_HEAD
from everbell.engine.meter import Meter
from everbell.engine.notices import Notices
from everbell.engine.ordering import Lanes
from everbell.engine.supervisor import Supervisor
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import GROUP_CHANGES_MAX, StoreWriter
from everbell.entropy import Entropy
from everbell.stores.port import Add, Block, Change, Finish, Move

_log = logging.getLogger("everbell.engine")

# How long the end of an event without a key may wait for other outcomes, unless something is written earlier.
GATHER_S = 0.005
_GATHERED_MAX = 256

# For the time after an outcome is stored: the entry that leaves memory, the next attempt or occurrence, and whether the
# next event of the key may start. A plain tuple, because one is made for every event.
_Settled = tuple[Entry, Event | None, bool]


class Outcomes:
    """Turns outcomes into changes. The outcomes of one turn of the loop become one unit."""

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        writer: StoreWriter,
        memory: WorkingSet,
        lanes: Lanes,
        meter: Meter,
        intake: Intake,
        notices: Notices,
        supervisor: Supervisor,
        kept_ends: KeptEnds,
    ) -> None:
        self._clock = clock
        self._notices = notices
        self._entropy = entropy
        self._writer = writer
        self._memory = memory
        self._lanes = lanes
        self._meter = meter
        self._intake = intake
        self._supervisor = supervisor
        self._kept_ends = kept_ends
        self._changes: list[Change] = []
        # Entries that only leave memory when their end is stored.
        self._ended: list[Entry] = []
        self._settled: list[_Settled] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = False

    def settled(self, entries: Sequence[Entry], outcome: Outcome) -> None:
        """Store the outcome of attempts that ended together."""
        now = self._clock.now()
        self._meter.count_ended(entries, outcome, now)
        if outcome.result == "delivered":
            entries = self._end_plain(entries, outcome, now)
        for entry in entries:
            if entry.is_cancelled:
                # A user cancelled the event. The key goes on when the cancel is stored and the attempt has ended.
                if entry.phase is Phase.GONE:
                    self._lanes.ended(entry)
                    entry.wake_waiters()
                else:
                    entry.ignored_outcome = outcome
            elif entry.phase is not Phase.GONE:
                self._judge(entry, outcome, now)
            elif outcome.result == "delivered" and entry.event.key is None:
                # This node lost the partition. It stores the end if it gets the partition back.
                record = delivered(entry.event, outcome, entry.attempt, entry.started_at, now)
                self._kept_ends.keep(Finish(entry.event, record, now + entry.flow.tenant.retention_ms))

    def _judge(self, entry: Entry, outcome: Outcome, now: int) -> None:
        try:
            judged = verdict(
                entry.event, entry.flow.tenant, outcome, entry.attempt, entry.started_at, now, self._entropy.jitter()
            )
        except Exception as fault:
            self.unfit(entry, fault)
            return
        match judged:
            case OccurrenceEnded():
                self._end(entry, judged, now)
            case Again(event=again):
                self._meter.count_retried(entry.flow)
                self._fail(entry, again, blocks=True)
            case Dead(event=dead):
                self._die(entry, dead, now)
            case _:
                assert_never(judged)

    def unfit(self, entry: Entry, fault: Exception) -> None:
        """End an entry whose event cannot be judged: its event is dead, with the fault as its reason."""
        event = entry.event
        _log.error("event %s of tenant %s cannot be judged: it is dead now", event.id, event.tenant, exc_info=fault)
        now = self._clock.now()
        self._die(entry, unjudged(event, entry.attempt if entry.started_at else event.attempt_count, fault, now), now)

    def _die(self, entry: Entry, dead: Event, now: int) -> None:
        self._meter.count_dead(entry.flow)
        self._tell_dead(dead, entry)
        to = entry.tenant.dead_letter_to
        letter = None if to is None or is_letter(dead) else self._intake.place_letter(dead, to, now)
        if letter is not None:
            self._intake.quotas.spend(dead.tenant)
        self._fail(entry, dead, blocks=entry.tenant.on_dead == "block", letter=letter)

    def _tell_dead(self, dead: Event, entry: Entry) -> None:
        tenant, group, reason = dead.tenant, entry.flow.group, dead.reason or "without a reason"
        message = f"tenant {tenant}: event {dead.id} to {group} is dead after {dead.attempt_count} attempts: {reason}"
        self._notices.tell("dead events", f"{tenant} {group} {reason}", message)

    def _end_plain(self, entries: Sequence[Entry], outcome: Outcome, now: int) -> list[Entry]:
        """Collect the ends of delivered events without a key and without recurrence. Returns the other entries.

        Most events are of this kind. This is `_judge` without the steps that they do not need.
        """
        others: list[Entry] = []
        ended, changes, settling, gone = self._ended, self._changes, Phase.SETTLING, Phase.GONE
        for entry in entries:
            event = entry.event
            if event.key is not None or event.repeat is not None or entry.is_cancelled or entry.phase is gone:
                others.append(entry)
                continue
            if len(changes) >= GROUP_CHANGES_MAX:
                self.flush()
                ended, changes = self._ended, self._changes
            record = delivered(event, outcome, entry.attempt, entry.started_at, now)
            changes.append(Finish(event, record, now + entry.flow.tenant.retention_ms))
            entry.phase = settling
            ended.append(entry)
        if len(changes) >= _GATHERED_MAX or self._memory.starved:  # Starved flows wait for room in memory.
            self._flush_soon()
        elif changes and self._timer is None:
            self._timer = self._supervisor.call_later(GATHER_S, self.flush)
        return others

    def expired(self, entry: Entry, instead: OccurrenceEnded | SentOff) -> bool:
        """End an entry that came too late, or make its occurrence an event of its own. False: there is no room for it,
        so the entry has to be attempted itself."""
        now = self._clock.now()
        if isinstance(instead, OccurrenceEnded):
            self._end(entry, instead, now)
        elif self._intake.quotas.make_one(entry.event.tenant):
            self._send_off(entry, instead, now)
        else:
            return False
        return True

    def flush(self) -> None:
        """Submit the collected changes."""
        self._is_soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._changes:
            return
        # A request may have caused this flush, and a fault in a request ends only the request. But without these
        # outcomes, which may be those of other events, the engine cannot go on.
        with self._supervisor.critical():
            changes, ended, settled = self._changes, self._ended, self._settled
            self._changes, self._ended, self._settled = [], [], []
            self._writer.submit(changes, lambda _: self._stored(ended, settled), must=True)

    def _flush_soon(self) -> None:
        """Submit the collected changes at the end of this turn of the loop."""
        if not self._is_soon:
            self._is_soon = True
            self._supervisor.call_soon(self.flush)

    def _end(self, entry: Entry, judged: OccurrenceEnded, now: int) -> None:
        if judged.record.status == "expired":
            self._meter.count_expired(entry.flow)
        elif judged.record.status == "cancelled":  # By a kill.
            self._meter.count_cancelled(entry.event.tenant)
        event = entry.event
        self._meter.count_occurrences(event.course, judged.record.course)
        change = Finish(event, judged.record, now + entry.flow.tenant.retention_ms, judged.following)
        self._collect(entry, change, judged.following, event.key is not None)

    def _send_off(self, entry: Entry, sent: SentOff, now: int) -> None:
        """Store the occurrence as an event of its own, in the write that moves the recurring event on."""
        event, comes = entry.event, sent.following
        self._meter.count_occurrences(event.course, sent.record.course)
        occurrence = self._intake.place_beside(event, now)
        change: Change = Finish(event, sent.record, now + entry.flow.tenant.retention_ms)
        if comes is not None:
            change = Move(event, comes)
        self._collect(entry, change, comes, False, (Add(occurrence, follows=True),))
        self._settled.append((entry, occurrence, False))

    def _fail(self, entry: Entry, after: Event, *, blocks: bool, letter: Event | None = None) -> None:
        """Store a failed attempt. `blocks`: the key of the event waits for it.

        The dead letter of an event that died is stored in the same unit.
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
        # Submitted now: the lane has left memory, so the next read of the key's mark must find this mark.
        self.flush()

    def _collect(
        self, entry: Entry, change: Change, arrives: Event | None, frees: bool, with_it: Sequence[Change] = ()
    ) -> None:
        """Add an outcome to the unit. Changes that belong together are in one call, so they are in one unit."""
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
            self._changes.append(Block(event.partition, event.tenant, event.key, NO_HEAD))

    def _stored(self, ended: list[Entry], settled: list[_Settled]) -> None:
        self._memory.forget_all(ended)
        forget = self._memory.forget
        for entry, arrives, frees in settled:
            forget(entry)
            if arrives is not None:
                self._arrive(arrives)
            if frees:
                self._lanes.ended(entry)

    def _arrive(self, event: Event) -> None:
        """Take in the next attempt or occurrence. If it is due, it takes its place in line before the key goes on."""
        if event.key is None or event.run_at > self._clock.now() or self._memory.is_behind_others(event):
            self._memory.arrive(event)
        elif (late := self._memory.admit_to_lane(event)) is not None:
            self._lanes.enter_late(late)
