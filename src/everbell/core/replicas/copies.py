"""A copy of an event, as each replica holds it, and the merge of two copies.

Copies of one event are totally ordered, and the merge is the later one. So the merge is associative, commutative and
idempotent: lost, late, repeated and reordered messages do no harm. The order compares, one after the other:

1. the version and its stamp: changes by users. Two sides of a network split can make the same version; then the later
   stamp wins. A cancel is such a change, so no later delivery brings the event back. The first version has no stamp
   here: a client that repeats a request makes the same event again, and the copy that has got further must win;
2. the occurrence, and whether it is the last: progress of the event's life;
3. attempts, and whether the event is dead: progress of the occurrence;
4. the stamp of that progress.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from everbell.core.event import Event, Record
from everbell.core.replication import Replication

_LOGICAL_BITS = 16

REPLICA_FORMAT = 1
"""The format of copies between nodes. A node takes no copy of another format."""


class Stamp(Struct, frozen=True, array_like=True, order=True, gc=False):
    """A time of a hybrid clock: later than every stamp that its node had seen. The name decides between equal times."""

    at: int = 0
    node: str = ""


NO_STAMP = Stamp()

Order = tuple[int, Stamp, int, bool, int, bool, Stamp]


class Copy(Struct, frozen=True, array_like=True, gc=False):
    """An event as one replica holds it. The order of fields is a format that nodes of two versions share."""

    event: Event | None
    """None: the event has ended, and this is a tombstone."""
    record: Record | None
    """The last occurrence that has ended, for the history; the end of the event if this is a tombstone."""
    replication: Replication
    version: int = 1
    """Counts changes by users."""
    stamp: Stamp = NO_STAMP
    """When the version was made."""
    touched: Stamp = NO_STAMP
    """When anything in the copy changed last."""
    ended_by: str = ""
    """The node that delivered the occurrence in `record`."""

    @property
    def tenant(self) -> str:
        return self._any.tenant

    @property
    def id(self) -> str:
        return self._any.id

    @property
    def name(self) -> tuple[str, str]:
        return self._any.tenant, self._any.id

    @property
    def _any(self) -> Event | Record:
        part = self.event or self.record
        assert part is not None, "a copy has an event, or the record of its end"
        return part

    @property
    def order(self) -> Order:
        """The place among all copies of the event: the later copy wins."""
        event, stamp = self.event, self.stamp if self.version > 1 else NO_STAMP
        if event is None:
            return self.version, stamp, self._any.occurrence, True, 0, False, self.touched
        is_dead = event.state == "dead"
        return self.version, stamp, event.occurrence, False, event.attempt_count, is_dead, self.touched

    @property
    def occurrence_ended(self) -> int:
        """The last occurrence that was delivered; 0 if none was."""
        return self.record.occurrence if self.record is not None and self.record.status == "delivered" else 0


def merge(one: Copy, other: Copy) -> Copy:
    """The later of two copies of one event."""
    return other if other.order > one.order else one


def delivered_twice(one: Copy, other: Copy) -> bool:
    """Whether two nodes delivered the same occurrence, each without knowing of the other."""
    return (
        one.occurrence_ended == other.occurrence_ended > 0
        and "" != one.ended_by != other.ended_by != ""
        and one.version == other.version
    )


def for_wire(copy: Copy) -> Copy:
    """The copy without the holder's own places: each holder has its own partitions and sequences."""
    return copy if copy.event is None else replace(copy, event=replace(copy.event, partition=0, sequence=0))


class HybridClock:
    """Makes stamps that are later than all stamps that were made or seen here."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._last = 0

    def stamp(self, now: int) -> Stamp:
        self._last = max(self._last + 1, now << _LOGICAL_BITS)
        return Stamp(self._last, self._node)

    def see(self, stamp: Stamp) -> None:
        self._last = max(self._last, stamp.at)
