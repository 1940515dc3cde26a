"""The port of all stores: what the engine asks of the place where events are kept.

Rules that every store keeps, and that `tests/conformance/test_store.py` checks on each:

- `apply` is atomic as a whole, and durable when it returns; its changes take effect in the order given. When it
  raises, none of them was made or ever will be, except after `StoreBroken`, which means: unknown, end the process
  and recover. Cancelling it leaves unknown what was made, too.
- Every write is fenced: it names the epochs under which its writer owns the partitions, and is refused as a whole with
  `Fenced` unless they are the ones in force for all partitions that it touches.
- `StoreUnavailable` means that nothing was done and that trying again may help; any other `StoreError` of a write is a
  reason to end.
- Every read has a limit. Unfinished events come in order of `Event.position`, waiting ones in `Event.order`.
- Expected outcomes are values (`Refusal`); exceptions mean that the store failed.
- The caller has at most one `apply` or `page` under way at a time, so persisting and loading are serialised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from everbell.core.event import Event, Record, Status
from everbell.stores.parcel import Parcel

SEQUENCES_AT_ONCE = 1 << 32
"""How many sequences an owner gets when it takes partitions."""


class Add(Struct, frozen=True, gc=False):
    """A new event. Refused when its id is client-given and known.

    A record that was to be kept until the new event's `created_at`, or less, does not count. A made id is new by
    construction, and carries the due time, sequence and partition of the event.
    """

    event: Event
    follows: bool = False
    """It follows from what has happened: it is stored also where there is no more room for what users ask for."""


class Move(Struct, frozen=True, gc=False):
    """The event becomes `after`: a retry, a new time, dead, redriven, waiting. Same id, partition and sequence; a new
    due time comes with a new version or occurrence.
    """

    before: Event
    after: Event
    guarded: bool = False
    """Refuse unless `before` is what is stored, by state, time and version; for changes that users ask for, which
    race with the engine's own. A change that is not guarded has to be right about it."""


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
    """Nothing of the key waits any more."""

    partition: int
    tenant: str
    key: str


Change = Add | Move | Finish | Block | Unblock

Write = Change | Parcel
"""What may be written. Parcels are for stores that take them."""


class Refusal(Struct, frozen=True):
    """Why a change was not made: `existing` has the id, or (None) the event is no longer what the change names."""

    existing: Event | Record | None
    unmet: str = ""
    """Why nothing was done, when that lies with the store: what the tenant wants of it cannot be had now. Only of
    changes that users ask for, which can be refused."""
    is_for_good: bool = False
    """That will not change: the store has no room for anything as large."""


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
    """How many events were left out because nobody wants them now."""
    last: int | None = None
    """If there is more: how far the page got. None: as far as the last event or poison in it."""


class Filter(Struct, frozen=True):
    """Which of a tenant's events to find; None means any. Without a status: the unfinished ones, but not the dead.

    The times are due times, both included. Scheduled events that ring before `from_at` are left out too, so that a
    search begins where it says. Only the engine knows what is `delivering`: here it is what is scheduled or retrying.
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
    """Where all events of the key are, for whoever knows that: then nowhere else is searched for unfinished ones."""


class Found(Struct, frozen=True):
    """One page of a search. `cursor` continues it, None is the end; before that, a page may be short, even empty: a
    search ends after so many rows, and after so many bytes (`semantics.FOUND_BYTES_MAX`)."""

    events: Sequence[Event | Record]
    cursor: str | None


class Counts(Struct, frozen=True):
    """How many events of a tenant are unfinished or dead now, and how many ended in each way since the beginning."""

    pending: int = 0
    dead: int = 0
    delivered: int = 0
    cancelled: int = 0
    expired: int = 0


class Store(Protocol):
    """A durable, ordered set of events. See the rules above."""

    partitions: int
    """How many partitions the store was created with."""

    epoch: int
    """The highest epoch that was in force for any partition when the store was opened, or that was written since."""

    group_changes: int
    """How many changes make a good apply: more would save little, and hold up whoever waits for the next."""

    prepares: bool
    """Whether `prepare` does anything."""

    takes_parcels: bool
    """Whether `apply` takes `Parcel`s of new events beside the changes; if so, they are never refused."""

    async def claim(self, cluster: str) -> int:
        """Belong to a cluster, once and for all: the first that claims it.

        Returns the epoch that was the highest at that time: the epochs of the cluster's log count from there on. Raises
        `StoreUnusable` when the store belongs to another cluster.
        """
        ...

    async def raise_fence(self, epochs: Mapping[int, int]) -> int:
        """Take the partitions: put these epochs in force for them.

        Each must be higher than the one before it, or nothing is done and `Fenced` is raised. Returns a sequence: the
        `SEQUENCES_AT_ONCE` higher ones are for the events of whoever called, and no event has one of them, nor any
        higher, that any other owner of these partitions stored. Without partitions: just more sequences.
        """
        ...

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        """Make the changes, durably, as the owner by these epochs. Returns the refused ones by index; the others were
        made.
        """
        ...

    async def prepare(self, changes: Sequence[Change]) -> None:
        """Get ready for the next `apply`, which will have this list, perhaps: what can be worked out without the store.

        It may be called while another apply is under way.
        """
        ...

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        """Scheduled events of a partition with `after` < position, due until `until_at`, in order; fewer than `limit`
        if they are large (`semantics.PAGE_BYTES_MAX`).

        `without` names tenants and stems of targets (`core.target.stem_of`) whose events nobody wants now: those that
        have no key may be left out. A store that cannot tell them more cheaply than by decoding leaves out none; one
        that tells them by a hash may, by a rare chance, leave out another, so whoever asks must not take what is
        missing for finished.
        """
        ...

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        """Waiting events of a key with `after` < order, in order; fewer than `limit` if they are large."""
        ...

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        """For each (tenant, key) the sequence of the head that blocks it; None where it is not blocked."""
        ...

    async def blocked(self, partition: int, after: tuple[str, str], limit: int) -> Sequence[tuple[str, str, int]]:
        """The blocked keys of a partition after (tenant, key), as (tenant, key, head), in order."""
        ...

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        """The event, or what is kept of it."""
        ...

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> Found:
        """Events that match: scheduled ones by position, then waiting ones by key; dead ones by when they died;
        finished ones by the hour when their record expires, the latest first.

        Raises `InvalidInput` for a cursor that is not of this search.
        """
        ...

    async def counts(self) -> Mapping[str, Counts]:
        """By tenant."""
        ...

    async def bury(self, poison: Poison) -> None:
        """Set a row that cannot be decoded aside, so that nobody reads it again. It still counts as pending."""
        ...

    async def sweep(self, now: int, limit: int) -> int:
        """Forget up to `limit` records whose hour is over, the oldest hour first; returns how many went."""
        ...

    async def backup(self, path: str) -> None:
        """Write a consistent copy that can be opened as a store, while everything goes on. `path` must be new."""
        ...

    async def close(self) -> None:
        """Let go of everything. Nothing is lost: what was acknowledged is durable already."""
        ...
