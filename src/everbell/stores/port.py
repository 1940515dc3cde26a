"""The port of all stores: the operations by which the engine keeps events.

Every store keeps these rules, and `tests/conformance/test_store.py` checks them on each store:

- `apply` is atomic as a whole, and durable when it returns; its changes take effect in the order given. When it
  raises, none of the changes was made or ever will be. `StoreBroken` is the exception: the outcome is unknown, and the
  process has to end and recover. The outcome of a cancelled `apply` is unknown, too.
- Every write is fenced: it names the epochs under which its writer owns the partitions. The store refuses the whole
  write with `Fenced` unless these epochs are in force for all partitions that the write touches.
- `StoreUnavailable` means that nothing was done and that a retry may help. After any other `StoreError` of a write, the
  process has to end.
- Every read has a limit. Unfinished events come in order of `Event.position`, waiting ones in `Event.order`.
- Expected outcomes are values (`Refusal`); exceptions mean that the store failed.
- The caller has at most one `apply` or `page` under way at a time, so persisting and loading are serialised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from everbell.core.allotment import Allotment
from everbell.core.event import Event, Record, Status
from everbell.core.simple_batch import SimpleBatch

SEQUENCES_AT_ONCE = 1 << 32
"""How many sequences an owner gets when it takes partitions."""


class Add(Struct, frozen=True, gc=False):
    """A new event. Refused when its id is client-given and known.

    A record that was to be kept until the new event's `created_at`, or less, does not count. A made id is new by
    construction, and carries the due time, sequence and partition of the event.
    """

    event: Event
    follows: bool = False
    """The event follows from a known outcome, so it is stored even when there is no more room for users' events."""
    reuses: bool = False
    """A record with the id does not count, however long it was to be kept. The event takes its place in the index."""


class Move(Struct, frozen=True, gc=False):
    """The event becomes `after`: a retry, a new time, dead, redriven, waiting. Same id, partition and sequence; a new
    due time comes with a new version or occurrence.
    """

    before: Event
    after: Event
    guarded: bool = False
    """Refuse unless the stored event has the state, time and version of `before`. For changes of users, which race with
    the engine's own changes. The caller of an unguarded change guarantees that `before` is stored."""


class Finish(Struct, frozen=True, gc=False):
    """The occurrence ended. Its record is kept until `keep_until_at`; `following` is the next occurrence, if any.

    `get` yields the record when nothing follows; those of earlier occurrences can only be found.
    """

    before: Event
    record: Record
    keep_until_at: int
    following: Event | None = None
    guarded: bool = False


class Block(Struct, frozen=True, gc=False):
    """The key's events wait behind the one with sequence `head`; 0 when only the line of waiting ones remains."""

    partition: int
    tenant: str
    key: str
    head: int


class Unblock(Struct, frozen=True, gc=False):
    """No event of the key waits any more."""

    partition: int
    tenant: str
    key: str


class PreparedRun(Struct, frozen=True, array_like=True, gc=False):
    """Prepared events that follow each other and lie in one partition."""

    partition: int
    count: int
    first_at: int
    last_at: int


class PreparedRows(Struct, frozen=True, tag="rows", gc=False):
    """New simple events of one tenant, as rows that the `RowMaker` of the store has made. Never refused.

    Their ids are made and not yet known to any client, so no other change of the same apply is about them.
    """

    tenant: str
    count: int
    last_sequence: int
    runs: tuple[PreparedRun, ...]
    body: tuple[list[bytes], ...]
    """Only the store and its `RowMaker` know the content."""

    def __len__(self) -> int:
        return self.count


Change = Add | Move | Finish | Block | Unblock | PreparedRows


class Refusal(Struct, frozen=True):
    """Why a change was not made: `existing` has the id, or (None) the event is no longer as the change says."""

    existing: Event | Record | None
    unmet: str = ""
    """Why the store could not make the change, if the store is the reason: it cannot meet the tenant's level now. Only
    changes of users are refused so."""
    is_for_good: bool = False
    """A retry cannot help: the store never takes an event of this size."""


class Poison(Struct, frozen=True):
    """A stored row that cannot be decoded, named by where it was found."""

    partition: int
    run_at: int
    """For a waiting one, its due time."""
    sequence: int
    raw: bytes
    reason: str
    place: bytes = b""
    """The store's own name for the place; empty means: among the scheduled events."""


class Page(Struct, frozen=True):
    """Some events in order. `more`: the range goes on; `next_at`: the time of the first event beyond `until_at`."""

    events: Sequence[Event]
    more: bool
    next_at: int | None = None
    poison: Sequence[Poison] = ()
    left_out: int = 0
    """How many events the page left out because of `without`."""
    last: int | None = None
    """If there is more: how far the page got. None: as far as the last event or poison in it."""


class Filter(Struct, frozen=True):
    """Which of a tenant's events to find; None means any. Without a status: the unfinished ones, but not the dead.

    The times are due times, both included. Scheduled events that ring before `from_at` are left out too, so that a
    search begins there. Only the engine knows which events are `delivering`; a store finds all scheduled events.
    """

    tenant: str
    status: Status | None = None
    key: str | None = None
    tag: str | None = None
    from_at: int | None = None
    until_at: int | None = None
    to: str | None = None
    """How the target begins."""
    id_prefix: str | None = None
    partition: int | None = None
    """The partition of the key, if the caller knows it: only there are unfinished events searched."""
    repeats: bool = False
    """Only events that repeat."""
    attempts_min: int = 0
    """Only events with at least this number of attempts."""
    target: str | None = None
    """Only events of this target, as `core.target.group_of` names it."""
    reason: str | None = None
    """Only events that are dead, or were not delivered, for exactly this reason."""


class Found(Struct, frozen=True):
    """One page of a search. `cursor` continues the search, None is the end. A page before the end may be short, even
    empty: each call examines a limited number of rows, and returns a limited number of bytes (`searching`)."""

    events: Sequence[Event | Record]
    cursor: str | None


class Counts(Struct, frozen=True):
    """How many events of a tenant are unfinished or dead now, and how many ended in each way since the beginning."""

    pending: int = 0
    dead: int = 0
    delivered: int = 0
    cancelled: int = 0
    expired: int = 0


class RowMaker(Protocol):
    """Turns simple events into rows. It is pure, so a gateway can do this work for the engine.

    The engine stores the rows unread, and reads only those that are due soon.
    """

    @property
    def format(self) -> str:
        """The name by which `stores.row_makers` finds this row maker in another process."""

    def make(
        self, tenant: str, batch: SimpleBatch, allotment: Allotment, nonces: bytes, now: int
    ) -> tuple[PreparedRows, list[str]]:
        """The events at the places of an allotment, and their ids. `nonces` is fresh randomness for each id."""

    def events(self, rows: PreparedRows, start: int = 0, end: int | None = None) -> list[Event]:
        """Read events back."""


class Preparer(Protocol):
    """Does the part of an `apply` that needs no store, while another `apply` is under way."""

    async def prepare(self, changes: Sequence[Change]) -> None:
        """Get ready for the next `apply`, which will probably have this very list."""


class Store(Protocol):
    """A durable, ordered set of events. See the rules above."""

    partitions: int
    """How many partitions the store was created with."""

    epoch: int
    """The highest epoch that was in force for any partition when the store was opened, or that was written since."""

    group_changes: int
    """How many changes make a good apply: more would save little, and delay the callers that wait for the next."""

    @property
    def row_maker(self) -> RowMaker | None:
        """Makes rows for this store; None if the store takes no `PreparedRows`."""

    @property
    def preparer(self) -> Preparer | None:
        """Prepares an `apply`; None if that would save this store nothing."""

    async def claim(self, cluster: str) -> int:
        """Belong to a cluster, once and for all: the first that claims it.

        Returns the epoch that was the highest at that time: the epochs of the cluster's log count from there on. Raises
        `StoreUnusable` when the store belongs to another cluster.
        """

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        """Take the partitions: put these epochs in force for them.

        Each must be higher than the one before it, or nothing is done and `Fenced` is raised. Returns a sequence: the
        `SEQUENCES_AT_ONCE` higher ones are for the events of the caller. No event that another owner of these
        partitions stored has one of them, or a higher one. Without partitions: just more sequences.
        """

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        """Make the changes, durably, as the owner by these epochs. Returns the refused ones by index; the others were
        made.
        """

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        """Scheduled events of a partition with `after` < position, due until `until_at`, in order; fewer than `limit`
        if they are large (`paging.PAGE_BYTES_MAX`).

        `without` names tenants and stems of targets (`core.target.stem_of`). The page may leave out their events
        without a key. A store that would have to decode rows for that leaves out none. A store that compares hashes
        may, by a rare chance, leave out another event, so a missing event need not be finished.
        """

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        """Waiting events of a key with `after` < order, in order; fewer than `limit` if they are large."""

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        """For each (tenant, key) the sequence of the head that blocks it; None where it is not blocked."""

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        """The blocked keys of a partition after (tenant, key), as (tenant, key, head), in order."""

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        """The event, or the record of a finished one."""

    async def get_many(self, tenant: str, event_ids: Sequence[str]) -> Sequence[Event | Record | None]:
        """The same for many events at once, in the order of their ids."""

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        """Events that match: scheduled ones by position, then waiting ones by key; dead ones by the time of death;
        finished ones by the hour in which their record expires, the latest first.

        Raises `InvalidInput` for a cursor that is not of this search.
        """

    async def counts(self) -> Mapping[str, Counts]:
        """By tenant."""

    async def bury(self, poison: Poison) -> None:
        """Set a row that cannot be decoded aside, so that it is not read again. It still counts as pending."""

    async def sweep(self, now: int, limit: int) -> int:
        """Forget up to `limit` records of hours that are over, the oldest hour first; returns how many."""

    async def backup(self, path: str) -> None:
        """Write a consistent copy that can be opened as a store, while other calls go on. `path` must be new."""

    async def close(self) -> None:
        """Release all resources. Nothing is lost: acknowledged changes are durable already."""
