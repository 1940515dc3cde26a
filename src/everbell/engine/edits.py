"""Edits: how a change that a user asks for meets an event that may become due at any moment.

Before anything is stored the event is taken off the floor (or held, if it is not there): from then on no attempt can
start. It comes back if the change cannot be stored. That is what makes an acknowledged cancel exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from everbell.core.event import Event, Record, is_paused
from everbell.engine.entry import Entry, Phase, until_settled
from everbell.engine.floor import Floor
from everbell.engine.intake import not_owner, unmet
from everbell.engine.lanes import NOBODY, Lanes
from everbell.engine.partition import Partition
from everbell.engine.scribe import Scribe, failing
from everbell.errors import Conflict, EverbellError, NotFound, StoreError, VersionMismatch
from everbell.stores.port import Block, Change, Move, Refusal, Store

Edit = Callable[[Event], Change]
"""What to store for an event, given what it is now."""

R = TypeVar("R")
D = TypeVar("D")


class _Taken(NamedTuple):
    """An entry that was taken off the floor, the phase in which it was (None: not in memory), and what to store."""

    entry: Entry
    was: Phase | None
    change: Change


class Edits:
    """Makes edits, one at a time for an event."""

    def __init__(
        self, store: Store, partitions: Sequence[Partition], floor: Floor, scribe: Scribe, lanes: Lanes
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._floor = floor
        self._scribe = scribe
        self._lanes = lanes

    async def find(self, tenant: str, event_id: str) -> Event | Record:
        """What is stored. Raises `NotFound`."""
        return _known(await self._store.get(tenant, event_id), event_id)

    async def make(
        self,
        tenant: str,
        event_id: str,
        edit: Edit,
        version: int | None,
        *,
        cancels: bool = False,
        frees: bool = True,
    ) -> Change:
        """Store a change of an event so that no attempt of its old form starts any more.

        `frees`: if the key waits for this event, it shall wait no longer.
        """

        def take(found: Event | Record | None) -> _Taken | Entry:
            """Take the event off the floor, in the same turn in which it was read; an entry that is settling has to be
            waited for."""
            stored = _known(found, event_id)
            if isinstance(stored, Record):
                raise Conflict(f"the event is already {stored.status}")
            if not self._partitions[stored.partition].epoch:
                raise not_owner(stored.partition)
            entry = self._floor.entries.get(stored.sequence)
            if entry is not None and entry.phase is Phase.SETTLING:
                return entry
            event = stored if entry is None else entry.event
            if version is not None and event.version != version:
                raise VersionMismatch(f"the event has version {event.version}, not {version}")
            change = edit(event)
            was = None if entry is None else entry.phase
            if entry is None:
                entry = self._floor.hold(event)
            elif entry.under_way and not cancels:
                raise Conflict("the event is being delivered at this moment; try again when the attempt is over")
            else:
                entry.doomed = entry.under_way
                entry.phase = Phase.SETTLING
                self._lanes.step_out(entry)
            return _Taken(entry, was, change)

        while True:
            taken = await self.read(lambda: self._store.get(tenant, event_id), take)
            if isinstance(taken, Entry):
                await until_settled(taken)
            elif await self._store_edit(taken.entry, taken.was, taken.change, frees):
                return taken.change

    async def _store_edit(self, entry: Entry, was: Phase | None, change: Change, frees: bool) -> bool:
        """Store the change of a taken entry, which was in phase `was` or not in memory.

        False when the event was no longer what the change says.

        What follows happens in the callback, whether or not the caller is still there to hear of it.
        """
        changes = [change]
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def finish(told: Mapping[int, Refusal] | StoreError) -> None:
            result: Mapping[int, Refusal] | EverbellError = told
            if not isinstance(told, StoreError) and 0 in told and told[0].unmet:
                result = unmet(told[0])
            if isinstance(result, EverbellError):
                self._put_back(entry, was)
            else:
                self._edited(entry, was, change, made=not result, freed=len(changes) > 1)
            if stored.done():
                return
            if isinstance(result, EverbellError):
                stored.set_exception(result)
            else:
                stored.set_result(not result)

        try:
            event = entry.event
            if frees and event.key is not None and (entry.blocks_key or await self._blocks_key(event)):
                changes.append(Block(event.partition, event.tenant, event.key, NOBODY))
            if entry.phase is Phase.GONE:
                raise not_owner(event.partition)  # It was let go of while we asked; others may have the event by now.
            self._scribe.submit(changes, finish, must=False)
        except BaseException:
            self._put_back(entry, was)
            raise
        return await stored

    def _edited(self, entry: Entry, was: Phase | None, change: Change, *, made: bool, freed: bool) -> None:
        self._floor.forget(entry)
        after = change.after if made and isinstance(change, Move) else None
        stays = None
        if after is not None and was is Phase.READY and after.due_at == entry.event.due_at and not is_paused(after):
            stays = after
        if after is not None and after.state == "scheduled" and (stays is None or after.key is None):
            self._floor.arrive(after)
        self._let_key_go_on(entry, stays, freed and made)

    def _let_key_go_on(self, entry: Entry, stays: Event | None, freed: bool) -> None:
        """`stays`: what the entry is in its key's line from now on."""
        event = entry.event
        if event.key is None or entry.under_way:
            return
        self._lanes.step_in(entry, stays)
        if freed:
            self._lanes.resume(event.partition, event.tenant, event.key)

    def _put_back(self, entry: Entry, was: Phase | None) -> None:
        """Nothing was stored: the event is what it was, and where it was."""
        if entry.phase is Phase.GONE:
            return  # With its partition. If that is here again, the event is too, as another entry.
        if entry.doomed:
            entry.doomed = False
            entry.phase = Phase.UNDER_WAY
            if entry.unheard is not None:
                entry.dispatcher.on_settled((entry,), entry.unheard)
            entry.wake_waiters()
        elif was is Phase.AHEAD and self._partitions[entry.event.partition].is_open:
            entry.phase = Phase.AHEAD
            self._floor.put_back(entry)
            entry.wake_waiters()
        else:
            self._floor.forget(entry)
            event = entry.event
            in_line = was is Phase.READY and event.key is not None
            if event.state == "scheduled" and not in_line:
                self._floor.arrive(event)
            self._let_key_go_on(entry, event if in_line else None, freed=False)

    async def _blocks_key(self, event: Event) -> bool:
        return await self.read(lambda: self._lanes.blocks(event), lambda blocks: blocks)

    async def read(self, ask: Callable[[], Awaitable[R]], decide: Callable[[R], D]) -> D:
        """Ask the store in the scribe's line, and decide before anything else can be read or stored."""
        answer: asyncio.Future[D] = asyncio.get_running_loop().create_future()

        async def operation() -> None:
            if answer.done():
                return  # Whoever asked is gone.
            try:
                answer.set_result(decide(await ask()))
            except EverbellError as refused:
                answer.set_exception(refused)

        self._scribe.read(operation, failing(answer))
        return await answer


def _known(found: Event | Record | None, event_id: str) -> Event | Record:
    if found is None:
        raise NotFound(f"there is no event {event_id!r}, or it ended longer ago than the tenant's retention")
    return found
