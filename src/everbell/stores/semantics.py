"""The meaning that all stores give to changes, filters and cursors, so that they cannot differ in it.

A search goes through one or two spaces of a store, each in an order of its own:

    scheduled   by position, over all partitions
    waiting     by partition and key, then in the key's order
    dead        by when they died
    finished    by the hour in which their record expires, the latest first, then by id, backwards

A cursor names the space and the last place that was examined there, without the tenant: it is only ever continued
inside the tenant of the filter, so a forged one shows nobody anything.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from everbell.core.event import End, Event, Record, status_of
from everbell.core.ids import make_id
from everbell.core.target import stem_of
from everbell.errors import Fenced, InvalidInput, StoreUnusable
from everbell.stores.parcel import Parcel
from everbell.stores.port import Add, Change, Filter, Finish, Move, Write

Space = Literal["E", "W", "D", "H"]

EXAMINED_MAX = 20_000
"""How many rows one call of `find` looks at; then it returns what it has, and a cursor."""

FOUND_BYTES_MAX = 4 * 1024 * 1024
"""How many bytes of payloads and headers one call of `find` returns, and no more than one event beyond: a page is held
in memory as a whole, by everybody whom it passes on its way to who asked.
"""

PAGE_BYTES_MAX = 8 * 1024 * 1024
"""How many bytes of rows are read at a time, and no more than one row beyond: payloads may be of megabytes."""

LEFT_OUT_PER_EVENT = 4
"""How many times its limit a page may leave out; then it ends, for passing over events takes time, too."""

_ENDS: frozenset[End] = frozenset({"delivered", "cancelled", "expired"})


class Catch:
    """What one call of `find` has found, until that is enough: by number, or by bytes."""

    __slots__ = ("_bytes", "_limit", "events")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self.events: list[Event | Record] = []

    def add(self, found: Event | Record) -> None:
        """One more. Records count by number alone: they have neither payload nor headers."""
        self.events.append(found)
        if isinstance(found, Event):
            self._bytes += len(found.payload) + sum(len(name) + len(value) for name, value in found.headers)

    @property
    def is_full(self) -> bool:
        """Whether the page ends here."""
        return len(self.events) >= self._limit or self._bytes >= FOUND_BYTES_MAX


def partition_of_change(change: Change) -> int:
    """The partition whose owner may make the change."""
    if isinstance(change, Add):
        return change.event.partition
    return change.before.partition if isinstance(change, (Move, Finish)) else change.partition


def partitions_of(write: Write) -> Collection[int]:
    """The partitions whose owner may write it."""
    if isinstance(write, Parcel):
        return {run.partition for run in write.runs}
    return (partition_of_change(write),)


def tenant_of_change(change: Change) -> str:
    """The tenant whose event or key the change is about."""
    if isinstance(change, Add):
        return change.event.tenant
    return change.before.tenant if isinstance(change, (Move, Finish)) else change.tenant


def check_fence(changes: Sequence[Write], claimed: Mapping[int, int], in_force: Mapping[int, int]) -> None:
    """Raise `Fenced` unless the epochs that a writer claims are in force for every partition that it writes to."""
    if claimed == in_force:
        return
    partitions = {partition for change in changes for partition in partitions_of(change)}
    raise_if_fenced(sorted(p for p in partitions if claimed.get(p) != in_force.get(p)))


def check_claim(owner: str, cluster: str) -> None:
    """Raise `StoreUnusable` unless the store belongs to this cluster."""
    if owner != cluster:
        raise StoreUnusable(
            "the store belongs to another cluster than the one that the log describes: check --store and --log"
        )


def check_raise(wanted: Mapping[int, int], in_force: Mapping[int, int]) -> None:
    """Raise `Fenced` unless every wanted epoch is higher than the one in force."""
    raise_if_fenced(sorted(p for p, epoch in wanted.items() if epoch <= in_force.get(p, 0)))


def raise_if_fenced(partitions: Sequence[int]) -> None:
    """Raise `Fenced` for these partitions, if there are any."""
    if partitions:
        named = ", ".join(map(str, partitions[:5])) + (" …" if len(partitions) > 5 else "")
        raise Fenced(f"another owner has taken partition {named}: this one no longer writes to it", tuple(partitions))


def is_left_out(event: Event, without: Collection[tuple[str, str]]) -> bool:
    """Whether a page is to leave out the event."""
    return event.key is None and (event.tenant, stem_of(event.to)) in without


def spaces_of(filter: Filter) -> tuple[Space, ...]:
    """The spaces in which what the filter means is found, in the order of the search."""
    if filter.status is None:
        return ("E", "W")
    if filter.status in _ENDS:
        return ("H",)
    return ("D",) if filter.status == "dead" else ("W",) if filter.status == "waiting" else ("E",)


def matches(filter: Filter, found: Event | Record) -> bool:
    """Whether a row of one of the filter's spaces is meant by it."""
    return (
        found.tenant == filter.tenant
        and (filter.key is None or found.key == filter.key)
        and (filter.tag is None or filter.tag in found.tags)
        and (filter.from_at is None or found.due_at >= filter.from_at)
        and (filter.until_at is None or found.due_at <= filter.until_at)
        and (filter.to is None or found.to.startswith(filter.to))
        and (filter.id_prefix is None or found.id.startswith(filter.id_prefix))
        and _has_status(filter, found)
    )


def _has_status(filter: Filter, found: Event | Record) -> bool:
    if isinstance(found, Record):
        return found.status == filter.status
    # Only the engine knows what is being delivered; here it is whatever may be.
    if filter.status is None or filter.status == "delivering":
        return True
    return status_of(found) == filter.status


def is_current(stored: Event, named: Event) -> bool:
    """Whether a guarded change that names an event may still be made to the stored one: same place, same version."""
    return (
        stored.state == named.state
        and stored.version == named.version
        and stored.sequence == named.sequence
        and (stored.due_at == named.due_at if named.state == "waiting" else stored.run_at == named.run_at)
    )


def is_home(event: Event) -> bool:
    """Whether an event with a made id lies where that says, so that finding it needs no index."""
    if event.state != "scheduled":
        return False
    if event.version == 1 and event.occurrence == 1:
        return event.run_at == event.due_at  # It is due when it was at first, and that is what the id carries.
    return event.id.startswith(make_id(event.run_at, event.sequence, event.partition, b""))


def write_cursor(space: Space, place: bytes) -> str:
    """The text that continues a search after a place; an empty place is the beginning of the space."""
    return urlsafe_b64encode(space.encode() + place).rstrip(b"=").decode()


def read_cursor(filter: Filter, cursor: str | None) -> tuple[Space, bytes]:
    """Where to continue: the space, and the last place there. Raises `InvalidInput` for what no such search
    returned.
    """
    spaces = spaces_of(filter)
    if cursor is None:
        return spaces[0], b""
    try:
        raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except (Error, UnicodeError) as error:
        raise bad_cursor() from error
    for space in spaces:
        if raw[:1] == space.encode():
            return space, raw[1:]
    raise bad_cursor()


def bad_cursor() -> InvalidInput:
    """For a cursor that does not belong to the search that it came with."""
    return InvalidInput("is not one that this search returned; repeat the search without it", "cursor")
