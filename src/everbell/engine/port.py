"""What the edge may ask of an engine, in this process or at the other end of a link.

`engine.operations.Operations` and `engine.leases.Leases` are the near ones; a gateway has far ones with the same
methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from everbell.channels.queue import Lease
from everbell.core.allotment import Allotment
from everbell.core.event import Event, Record, Status
from everbell.core.plain import Plain
from everbell.core.retry import Outcome
from everbell.core.spec import Draft
from everbell.engine.forecast import Forecast
from everbell.errors import EverbellError
from everbell.stores.parcel import Parcel
from everbell.stores.port import Counts, Filter


class Seen(Struct, frozen=True):
    """An event as it is now, for users."""

    event: Event | Record
    status: Status
    created: bool = False
    """Whether this request made it; False when a repeated request found it."""


class KeyLine(Struct, frozen=True):
    """A key as it is now: the event whose end the others wait for, if any is due, and how many wait."""

    head: Seen | None
    waiting: int
    is_more: bool = False
    """Whether there are more than were counted."""


class OperationsPort(Protocol):
    """Events: schedule, look, change, cancel, ring, redrive. Every method may raise `Stopping` and `Overloaded`."""

    def schedule(self, tenant: str, drafts: Sequence[Draft]) -> Awaitable[list[Seen | EverbellError]]:
        """Store new events; for each draft in turn what it became, or why it was refused.

        A client-given id that is in use is no error when the event asks for the same: then it is a repeated request.
        """
        ...

    def schedule_ids(self, tenant: str, drafts: Sequence[Draft]) -> Awaitable[list[str | Seen | EverbellError]]:
        """The same, for callers who want to know no more of an event that was made than its id."""
        ...

    def schedule_plain(self, tenant: str, plain: Plain) -> Awaitable[Sequence[str | Seen | EverbellError]]:
        """The same for plain events."""
        ...

    async def allot(self, count: int) -> Allotment | None:
        """Places for new plain events. None: there are none to give, and they have to come as drafts."""
        ...

    async def take_in(self, parcel: Parcel) -> bool:
        """Store events at such places. False: nothing was stored, and they have to come as drafts."""
        ...

    async def get(self, tenant: str, event_id: str) -> Seen:
        """Raises `NotFound`."""
        ...

    async def find(self, filter: Filter, cursor: str | None, limit: int) -> tuple[list[Seen], str | None]:
        """One page, and the cursor of the next."""
        ...

    async def counts(self) -> Mapping[str, Counts]:
        """By tenant."""
        ...

    async def replace(self, tenant: str, event_id: str, draft: Draft, version: int | None) -> Seen:
        """Create the event, or put the draft in its place. Raises `Conflict` when it ended, `VersionMismatch`."""
        ...

    async def change(self, tenant: str, event_id: str, fields: Mapping[str, Any], version: int | None) -> Seen:
        """Change fields of `Event`, as made by `core.spec.changes_of`.

        Raises `NotFound`, `Conflict`, `VersionMismatch`.
        """
        ...

    async def cancel(self, tenant: str, event_id: str, version: int | None = None) -> Seen:
        """No attempt starts after this returns.

        Raises `NotFound`, `Conflict` when it ended already, `VersionMismatch`.
        """
        ...

    async def cancel_matching(self, filter: Filter) -> int:
        """Cancel all that match; returns how many were."""
        ...

    async def ring(self, tenant: str, event_id: str) -> Seen:
        """Make the event due at once. Raises `NotFound`, `Conflict`."""
        ...

    async def redrive(self, tenant: str, event_id: str, delay_ms: int = 0) -> Seen:
        """Give a dead event a new set of attempts. Raises `NotFound`, `Conflict` when it is not dead."""
        ...

    async def redrive_matching(self, filter: Filter, per_s: float | None = None) -> int:
        """Redrive all dead events that match, at once or so many a second; returns how many were."""
        ...

    async def line(self, tenant: str, key: str) -> KeyLine:
        """Who is next in a key, and how many wait."""
        ...

    async def forecast(self, tenant: str | None, per_ms: int, count: int) -> Forecast:
        """How many events are due in each span of time ahead, of one tenant or of all, and what is overdue."""
        ...

    async def try_out(self, tenant: str, event_id: str) -> Outcome:
        """Make one attempt that changes nothing. Raises `NotFound`, `Conflict`."""
        ...


class LeasesPort(Protocol):
    """Queues, for workers. Answers of tokens list those that were not held any more."""

    async def lease(self, tenant: str, queue: str, limit: int, wait_ms: int, lease_ms: int | None) -> list[Lease]:
        """Up to `limit` due events, waiting up to `wait_ms` for the first."""
        ...

    async def acknowledge(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        """The events are done."""
        ...

    async def fail(self, tenant: str, queue: str, failures: Mapping[str, Outcome]) -> list[str]:
        """The attempts failed: the events are tried again, or are dead, by their policy."""
        ...

    async def give_back(self, tenant: str, queue: str, tokens: Sequence[str]) -> list[str]:
        """The events were not attempted: somebody else may have them at once, and no attempt is counted."""
        ...

    async def extend(self, tenant: str, queue: str, tokens: Sequence[str], lease_ms: int) -> list[str]:
        """Hold the events for `lease_ms` more, from now."""
        ...
