"""The port of all channels: how a due event leaves Everbell."""

from __future__ import annotations

import logging
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from everbell.core.event import Event
from everbell.core.retry import Outcome
from everbell.core.tenant import Tenant

_log = logging.getLogger("everbell.channels")


class Delivery(Protocol):
    """One event that has to be delivered now."""

    event: Event
    attempt: int
    """The number of this attempt at this occurrence, from 1."""

    @property
    def tenant(self) -> Tenant: ...

    @property
    def epoch(self) -> int: ...

    @property
    def desk(self) -> Desk:
        """Begins and settles deliveries in batches; the same for all deliveries of one `start`."""
        ...

    def begin(self) -> bool:
        """Start the attempt. False if there is nothing to deliver any more: the event was cancelled or changed."""
        ...

    def settle(self, outcome: Outcome) -> None:
        """Report the outcome of the attempt, exactly once for every successful `begin`."""
        ...

    def give_back(self) -> None:
        """Undo `begin`, instead of `settle`: no receiver got the event, so there was no attempt."""
        ...


class Desk(Protocol):
    """Begins and settles many deliveries at once, which costs far less than one by one and means the same."""

    def begin_all(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Start the attempts; returns the deliveries that are still to be made."""
        ...

    def settle_all(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Report the same outcome for all these attempts."""
        ...


class SmallDesk:
    """A desk for deliveries that are begun and settled one by one."""

    def begin_all(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return [delivery for delivery in deliveries if delivery.begin()]

    def settle_all(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        for delivery in deliveries:
            delivery.settle(outcome)


class Keeper(Protocol):
    """Ends the engine if a channel that belongs to it fails in the middle of a change of its own state."""

    def call_later(self, seconds: float, callback: Callable[[], object], /) -> TimerHandle:
        """Call back after this time."""
        ...

    def critical(self) -> AbstractContextManager[None]:
        """A block that no exception may leave."""
        ...


class Channel(Protocol):
    """Delivers events to one kind of target.

    `start` never waits, and never raises because of a receiver. It begins each delivery at once, or when a worker
    asks for it. Every begun delivery is settled within the tenant's deadline. The engine hands over at most the
    tenant's `in_flight` deliveries per target at a time, unless the channel `holds` them until a worker asks for
    them.
    """

    holds: bool
    together: int
    """How many deliveries travel together regardless of the tenant's `batch`: they count as one `in_flight`."""

    def start(self, deliveries: Sequence[Delivery]) -> None: ...

    async def close(self) -> None:
        """Drop the deliveries in flight without settling them."""
        ...


def faulty(fault: Exception) -> Outcome:
    """The outcome of an attempt during which a channel raised an exception that it should not raise. It is logged.

    The text of the exception is not part of the outcome: tenants read outcomes, and the text may concern others.
    """
    _log.error("a channel failed: %r", fault, exc_info=fault)
    return Outcome("failed", f"Everbell failed to send it ({type(fault).__name__}); the server's log has the details")
