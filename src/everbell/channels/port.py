"""The port of all channels: how a due event leaves Everbell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from everbell.core.event import Event
from everbell.core.retry import Outcome
from everbell.core.tenant import Tenant


class Delivery(Protocol):
    """One event that is to be delivered now."""

    event: Event
    attempt: int
    """The number of this attempt at this occurrence, from 1."""

    @property
    def tenant(self) -> Tenant: ...

    @property
    def epoch(self) -> int: ...

    @property
    def desk(self) -> Desk:
        """Where it begins and ends together with others; the same for all that come in one `start`."""
        ...

    def begin(self) -> bool:
        """Start the attempt. False when there is no longer anything to deliver: it was cancelled or changed."""
        ...

    def settle(self, outcome: Outcome) -> None:
        """Report what came of the attempt; exactly once for every `begin` that said yes."""
        ...

    def give_back(self) -> None:
        """Take back the `begin`: nobody got the event, so there was no attempt. Instead of `settle`."""
        ...


class Desk(Protocol):
    """Begins and settles many deliveries at once, which costs far less than one by one and means the same."""

    def begin_all(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Start the attempts; returns those for which there is still something to deliver."""
        ...

    def settle_all(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Report that the same came of all of these attempts."""
        ...


class SmallDesk:
    """A desk for deliveries that are begun and settled one by one."""

    def begin_all(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        return [delivery for delivery in deliveries if delivery.begin()]

    def settle_all(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        for delivery in deliveries:
            delivery.settle(outcome)


class Channel(Protocol):
    """Delivers events to one kind of target.

    `start` never waits and never raises for what a receiver does: it begins each delivery (at once, or when a worker
    asks for it), and every begun one is settled within the tenant's deadline. The engine hands over at most the
    tenant's `in_flight` deliveries per target at a time, unless the channel `holds` them until somebody asks for
    them.
    """

    holds: bool
    together: int
    """How many deliveries travel together whatever the tenant's `batch` is: so many count as one `in_flight`."""

    def start(self, deliveries: Sequence[Delivery]) -> None: ...

    async def close(self) -> None:
        """Give up what is under way, without settling it."""
        ...
