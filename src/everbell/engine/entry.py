"""An event in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from everbell.core.event import Event
from everbell.core.retry import Outcome
from everbell.core.tenant import Tenant
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, Flow

if TYPE_CHECKING:
    from everbell.engine.dispatcher import Dispatcher


class Phase(IntEnum):
    """Where an event in memory is. It may leave memory from any phase."""

    AHEAD = 0  # in the agenda, not due yet
    READY = 1  # due: in its key's lane, or waiting for a free slot of its target
    IN_FLIGHT = 2  # an attempt has started
    SETTLING = 3  # a change of the event is being stored
    GONE = 4  # left memory: a component that still finds the entry drops it


class Entry(Struct, eq=False):
    """An event, its flow and its progress. Channels see it as a `Delivery`.

    One entry is made for every event that comes to memory. A struct is the fastest kind of object to make.
    """

    event: Event
    flow: Flow
    dispatcher: Dispatcher
    cost: int
    """The bytes that it takes from the memory budget."""
    attempt: int
    phase: Phase = Phase.AHEAD
    started_at: int = 0
    in_flight: bool = False
    blocks_key: bool = False
    """The store has a mark that makes the key wait for this event. The event's end must lift the mark."""
    is_cancelled: bool = False
    """A user cancelled the event while its attempt was in flight: the outcome is ignored."""
    ignored_outcome: Outcome | None = None
    """The outcome of a cancelled attempt. It counts if the cancel cannot be stored."""
    waiters: list[Callable[[], None]] | None = None

    @property
    def tenant(self) -> Tenant:
        return self.flow.tenant

    @property
    def epoch(self) -> int:
        return self.dispatcher.epochs.get(self.event.partition, 0)

    @property
    def desk(self) -> Dispatcher:
        return self.dispatcher

    @property
    def is_judged(self) -> bool:
        """Whether the outcome counts for the breaker: not if the event was cancelled or has left this node."""
        return self.phase is Phase.IN_FLIGHT and not self.is_cancelled

    def begin(self) -> bool:
        return bool(self.dispatcher.begin_all((self,)))

    def settle(self, outcome: Outcome) -> None:
        self.dispatcher.settle_all((self,), outcome)

    def give_back(self) -> None:
        self.dispatcher.give_back(self)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back when the change that is being stored has been stored."""
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(callback)

    def wake_waiters(self) -> None:
        """Call the waiters: the change was stored, or it was given up."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            waiter()


def entry_of(event: Event, flow: Flow, dispatcher: Dispatcher) -> Entry:
    """Make the entry of an event that comes to memory."""
    return Entry(event, flow, dispatcher, EVENT_OVERHEAD_BYTES + len(event.payload), event.attempt_count + 1)


def until_settled(entry: Entry) -> asyncio.Future[None]:
    """A future that is done when the current change, or the outcome of the current attempt, has been stored.

    This is not a coroutine: `asyncio.gather` starts a coroutine one turn of the loop later, which may be too late.
    """
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not settled.done():
            settled.set_result(None)

    entry.when_settled(wake)
    return settled
