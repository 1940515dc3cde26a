"""The copies that this node holds: a store in memory for the engine, which also knows the version of each copy.

The engine stores the outcome of every attempt here, as in any store. Each such change makes a later copy of the event,
and `on_news` sends it to the other replicas. Changes that come from another replica are announced with `expect` before
the engine stores them; they become that replica's copy, and are not sent on.

All memory is counted: live events against the cap, ends (tombstones and history) against a cap of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge as merge_sorted
from itertools import islice

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.replicas.copies import Copy, HybridClock, merge
from everbell.core.replicas.sightings import AWAY_MAX_MS, Sightings
from everbell.core.replication import Replication
from everbell.core.time import HOUR_MS
from everbell.engine.replica_requests import CopyName
from everbell.replicas.shared_values import SharedValues
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Add, Change, Finish, Move, Refusal
from everbell.stores.rows import DEAD, ENDED, PENDING

_log = logging.getLogger("everbell.replicas")

COPY_BYTES = 1_200
"""About the cost of a copy in memory, without its payload: the event, its version, and its places in the lists."""
ENDS_MAX = 50_000
"""The number of ends (tombstones, and records of occurrences) that a node keeps; then the oldest are forgotten."""
_PARTITIONS = 64
_MAKE_ROOM_MS = 1_000
# The record of one occurrence of an event that goes on brings nothing back.
_NO_TOMBSTONE = -(1 << 62)
_RecordName = tuple[int, str, str, int]


class CopyStore(MemoryStore):
    """A `Store` of the copies on this node."""

    row_maker = None  # type: ignore[assignment]  # Prepared rows have no version.

    def __init__(
        self, clock: Clock, node: str, cap_bytes: int, on_news: Callable[[list[Copy]], None], sightings: Sightings
    ) -> None:
        super().__init__(_PARTITIONS)
        self.copies: dict[CopyName, Copy] = {}
        """All copies, tombstones included."""
        self.held_bytes = 0
        self.cap_bytes = cap_bytes
        # For events that are being added: several requests may do so at the same time.
        self._reserved_bytes = 0
        self.ends_max = ENDS_MAX
        self.tombstones = 0
        self.hybrid = HybridClock(node)
        self._node = node
        self._clock = clock
        self._on_news = on_news
        self._expected: dict[CopyName, Copy | None] = {}
        self.forgotten_early = 0
        """Tombstones that were forgotten although a node may bring their events back."""
        self.overdue: dict[CopyName, int] = {}
        """When this node learned of live events that were due by then (by the monotonic clock)."""
        self._sightings = sightings
        # The ends in the order in which they came: until when each is kept for the history (by the wall clock), and
        # until when replicas may take turns at the event (by the monotonic clock).
        self._ends: dict[_RecordName, tuple[int, int]] = {}
        self._made_room_ms = 0
        self._shared = SharedValues()
        # The events that have come to an earlier place since a walk over all copies began.
        self._moved_back: dict[CopyName, None] = {}

    def expect(self, name: CopyName, copy: Copy | None) -> None:
        """The next change of this event comes from another replica, whose copy is given. None: it is dropped here."""
        self._expected[name] = copy

    def expect_no_more(self, name: CopyName) -> None:
        """The announced change was refused."""
        self._expected.pop(name, None)

    def reserve(self, copy: Copy) -> bool:
        """Whether another event fits below the cap. Its place is reserved until `release`."""
        cost = _cost(copy)
        if self.held_bytes + self._reserved_bytes + cost > self.cap_bytes:
            return False
        self._reserved_bytes += cost
        return True

    def release(self, copies: Iterable[Copy]) -> None:
        """These events are held now, or were refused for another reason."""
        self._reserved_bytes -= sum(map(_cost, copies))

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        refused = await super().apply(changes, epochs)
        news: list[Copy] = []
        for index, change in enumerate(changes):
            if index in refused or not isinstance(change, (Add, Move, Finish)):
                continue
            name = _name_of(change)
            if name not in self._expected:
                copy = self._own_copy(change, changes[index + 1 :])
                self._keep(name, change, copy)
                if not _is_by_user(change):  # The coordinator sends changes of users, and waits for the answers.
                    news.append(copy)
                continue
            expected = self._expected.pop(name)
            if expected is None:
                self._erase(name, change)
            else:
                self._keep(name, change, expected)
        if news:
            self._on_news(news)
        return refused

    def _own_copy(self, change: Add | Move | Finish, later: Sequence[Change]) -> Copy:
        """The copy after a change that this node made."""
        touched = self.hybrid.stamp(self._clock.now())
        if isinstance(change, Add):
            # A dead letter or a detached occurrence. It is stored together with the change that it follows from.
            parents = (self.copies.get(_name_of(each)) for each in later if isinstance(each, (Move, Finish)))
            parent = next((copy for copy in parents if copy is not None), None)
            replication = Replication() if parent is None else parent.replication
            return Copy(change.event, None, replication, stamp=touched, touched=touched)
        before = self.copies[_name_of(change)]
        version, stamp = (before.version + 1, touched) if _is_by_user(change) else (before.version, before.stamp)
        if isinstance(change, Move):
            return replace(before, event=change.after, version=version, stamp=stamp, touched=touched)
        return Copy(change.following, change.record, before.replication, version, stamp, touched, self._node)

    def _keep(self, name: CopyName, change: Add | Move | Finish, copy: Copy) -> None:
        """Hold a copy in the place of the earlier one. Its event is the one that the engine has stored."""
        event = _event_after(change)
        copy = self._shared.copy_with(copy, event)
        before = self.copies.get(name)
        self.held_bytes += _cost(copy) - (0 if before is None else _cost(before))
        self.tombstones += (copy.event is None) - (before is not None and before.event is None)
        self.copies[name] = copy
        if event is not None and event.state != "dead" and event.run_at <= self._clock.now():
            self.overdue[name] = self._clock.elapsed_ms()
        elif self.overdue:
            self.overdue.pop(name, None)
        self.hybrid.see(copy.stamp)
        self.hybrid.see(copy.touched)
        if isinstance(change, Move) and (
            change.after.position < change.before.position or change.before.state == "dead"
        ):
            self._moved_back[name] = None
        if isinstance(change, Finish):
            occurrence = 0 if change.following is None else change.record.occurrence
            quiet_ms = _NO_TOMBSTONE if occurrence else self._quiet_ms(copy)
            self._ends[change.keep_until_at // HOUR_MS, *name, occurrence] = change.keep_until_at, quiet_ms
            self._make_room()

    def _quiet_ms(self, copy: Copy) -> int:
        """The time until which replicas may still take turns at an event that has just ended."""
        return self._clock.elapsed_ms() + copy.replication.skew_ms * copy.replication.count

    def put_tombstone(self, copy: Copy) -> None:
        """Remember the end of an event that this node did not hold, so that a late copy does not bring it back."""
        before = self.copies.get(copy.name)
        if before is None or (before.event is None and merge(before, copy) is copy):
            self.tombstones += before is None
            self.copies[copy.name] = copy
            self.hybrid.see(copy.touched)
            if before is None:
                self._ends[0, *copy.name, 0] = 0, self._quiet_ms(copy)
                self._make_room()

    def reopen(self, event: Event) -> None:
        """Let an event be added whose end is recorded here: a user changed it on the other side of a split."""
        self._shelves.drop_index(event)

    def _erase(self, name: CopyName, change: Change) -> None:
        """Forget an event without a trace: other nodes hold it, or it was never acknowledged."""
        assert isinstance(change, Finish), "a copy is dropped by its end"
        self._shelves.forget_one((change.keep_until_at // HOUR_MS, *name, 0))
        self._shelves.counts[name[0]][ENDED[change.record.status]] -= 1
        before = self.copies.pop(name)
        self.overdue.pop(name, None)
        self.held_bytes -= _cost(before)

    async def sweep(self, now: int, limit: int) -> int:
        """Forget ends that are too old for the history, and that no node can bring back."""
        elapsed_ms = self._clock.elapsed_ms()
        old = [
            name
            for name, (until_at, quiet_ms) in self._ends.items()
            if until_at <= now and not self._is_needed(quiet_ms, elapsed_ms)
        ]
        for name in old:
            self._forget_end(name)
        return 0

    def _is_needed(self, quiet_ms: int, elapsed_ms: int) -> bool:
        """Whether a node that was not heard of since the end may still hold the event."""
        return elapsed_ms < quiet_ms + AWAY_MAX_MS and not self._sightings.all_seen_since(quiet_ms)

    def _make_room(self) -> None:
        """Keep the number of ends below its cap: those that are only history go first."""
        if len(self._ends) <= self.ends_max:
            return
        elapsed_ms = self._clock.elapsed_ms()
        if elapsed_ms >= self._made_room_ms + _MAKE_ROOM_MS:
            self._made_room_ms = elapsed_ms
            idle = (name for name, (_, quiet_ms) in self._ends.items() if not self._is_needed(quiet_ms, elapsed_ms))
            for name in list(islice(idle, self.ends_max // 10)):
                self._forget_end(name)
        while len(self._ends) > self.ends_max:
            name, (_, quiet_ms) = next(iter(self._ends.items()))
            if self._is_needed(quiet_ms, elapsed_ms):
                self._tell_early()
            self._forget_end(name)

    def _tell_early(self) -> None:
        if self.forgotten_early % self.ends_max == 0:
            away = ", ".join(self._sightings.away) or "another node"
            _log.warning(
                "more than %d events ended while %s was away: the oldest ends are forgotten, and those events are "
                "delivered again if that node brings them back",
                self.ends_max,
                away,
            )
        self.forgotten_early += 1

    def _forget_end(self, name: _RecordName) -> None:
        del self._ends[name]
        self._shelves.forget_one(name)
        copy = self.copies.get(name[1:3])
        if name[3] == 0 and copy is not None and copy.event is None:
            del self.copies[name[1:3]]
            self.tombstones -= 1

    def pages(self, size: int, turn: int, turns: int) -> Iterator[list[CopyName]]:
        """The names of all copies: the earliest due first, then dead events, then ends. Copies may change between
        two pages. Events that are new since the first page may be left out; all others are there, some of them twice.

        Each of several nodes that walk at the same time has a `turn`, and begins with another one of the next pages.
        """
        self._moved_back.clear()
        shelves, place = self._shelves, -1
        last = max((shelf.last for shelf in shelves.scheduled), default=-1)
        while place < last:
            places = list(islice(merge_sorted(*(shelf.after(place) for shelf in shelves.scheduled)), turns * size))
            if not places:
                break
            place = places[-1]
            names = [(event.tenant, event.id) for event in map(shelves.at, places)]
            some = [names[start : start + size] for start in range(0, len(names), size)]
            yield from some[turn:] + some[:turn]
        dead = [shelves.at(place) for shelf in shelves.dead.values() for place in shelf.after(-1)]
        ended = (name[1:3] for name in self._ends if name[3] == 0)
        others = [*((event.tenant, event.id) for event in dead), *ended, *self._moved_back]
        for start in range(0, len(others), size):
            yield others[start : start + size]

    def live(self) -> Iterator[Copy]:
        return (copy for copy in self.copies.values() if copy.event is not None)

    @property
    def pending(self) -> int:
        return sum(tally[PENDING] for tally in self._shelves.counts.values())

    @property
    def dead(self) -> int:
        return sum(tally[DEAD] for tally in self._shelves.counts.values())


def _name_of(change: Add | Move | Finish) -> CopyName:
    event = change.event if isinstance(change, Add) else change.before
    return event.tenant, event.id


def _event_after(change: Add | Move | Finish) -> Event | None:
    if isinstance(change, Add):
        return change.event
    return change.after if isinstance(change, Move) else change.following


def _is_by_user(change: Add | Move | Finish) -> bool:
    return not isinstance(change, Add) and change.guarded


def _cost(copy: Copy) -> int:
    return 0 if copy.event is None else COPY_BYTES + len(copy.event.payload)
