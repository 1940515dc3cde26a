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
    """Where an event in memory is. It leaves memory from any of them."""

    AHEAD = 0  # in the agenda, not due yet
    READY = 1  # due: in its key's lane, or waiting for a free slot of its target
    UNDER_WAY = 2  # an attempt has begun
    SETTLING = 3  # a change of it is being stored
    GONE = 4  # no longer to be delivered from here; whoever meets it drops it


class Entry(Struct, eq=False):
    """The event, its flow, and how far it has come. Channels see it as a `Delivery`.

    A struct, since one is made for every event that comes to memory, and this is the quickest way to make one.
    """

    event: Event
    flow: Flow
    dispatcher: Dispatcher
    cost: int
    """What it takes of the memory that events share."""
    attempt: int
    phase: Phase = Phase.AHEAD
    started_at: int = 0
    under_way: bool = False
    blocks_key: bool = False
    """A stored mark says that its key waits for it; its end must lift the mark."""
    doomed: bool = False
    """It was cancelled while its attempt was under way: the outcome no longer matters."""
    unheard: Outcome | None = None
    """That outcome, in case the cancel cannot be stored."""
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
        """Whether what comes of its attempt says something of the target: not if the event is nobody's here by now."""
        return self.phase is Phase.UNDER_WAY and not self.doomed

    def begin(self) -> bool:
        return bool(self.dispatcher.begin_all((self,)))

    def settle(self, outcome: Outcome) -> None:
        self.dispatcher.settle_all((self,), outcome)

    def give_back(self) -> None:
        self.dispatcher.give_back(self)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once the change that is being stored has been stored."""
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(callback)

    def wake_waiters(self) -> None:
        """What was being stored is stored, or has come to nothing."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            waiter()


def entry_of(event: Event, flow: Flow, dispatcher: Dispatcher) -> Entry:
    """An event comes to memory."""
    return Entry(event, flow, dispatcher, EVENT_OVERHEAD_BYTES + len(event.payload), event.attempt_count + 1)


def until_settled(entry: Entry) -> asyncio.Future[None]:
    """Done when the change that is being stored, or will be once the attempt is over, has been stored.

    Not a coroutine: one that is awaited together with others begins a turn of the loop later, and may miss it.
    """
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not settled.done():
            settled.set_result(None)

    entry.when_settled(wake)
    return settled
