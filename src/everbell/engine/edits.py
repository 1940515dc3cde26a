"""Edits: how a change that a user asks for meets an event that may become due at any moment.

Before anything is stored the event is taken off the floor (or held, if it is not there): from then on no attempt can
start. It comes back if the change cannot be stored. That is what makes an acknowledged cancel exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from everbell.core.event import Event, Record
from everbell.engine.entry import Entry, Phase
from everbell.engine.floor import Floor
from everbell.engine.lanes import NOBODY, Lanes
from everbell.engine.scribe import Scribe
from everbell.errors import Conflict, NotFound, StoreError, VersionMismatch
from everbell.stores.port import Block, Change, Move, Refusal, Store

Edit = Callable[[Event], Change]
"""What to store for an event, given what it is now."""


class Edits:
    """Makes edits, one at a time for an event."""

    def __init__(self, store: Store, floor: Floor, scribe: Scribe, lanes: Lanes) -> None:
        self._store = store
        self._floor = floor
        self._scribe = scribe
        self._lanes = lanes

    async def find(self, tenant: str, event_id: str) -> Event | Record:
        """What is stored. Raises `NotFound`."""
        found = await self._store.get(tenant, event_id)
        if found is None:
            raise NotFound(f"there is no event {event_id!r}, or it ended longer ago than the tenant's retention")
        return found

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
        while True:
            found = await self.find(tenant, event_id)
            if isinstance(found, Record):
                raise Conflict(f"the event is already {found.status}")
            entry = self._floor.entries.get(found.sequence)
            if entry is not None and entry.phase is Phase.SETTLING:
                await _until_settled(entry)
                continue
            event = found if entry is None else entry.event
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
            if await self._store_edit(entry, was, change, frees):
                return change

    async def _store_edit(self, entry: Entry, was: Phase | None, change: Change, frees: bool) -> bool:
        """Store the change of a taken entry, which was in phase `was` or not in memory.

        False when the event was no longer what the change says.

        What follows happens in the callback, whether or not the caller is still there to hear of it.
        """
        changes = [change]
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def finish(result: Mapping[int, Refusal] | StoreError) -> None:
            if isinstance(result, StoreError):
                self._put_back(entry, was)
            else:
                self._edited(entry, was, change, made=not result, freed=len(changes) > 1)
            if stored.done():
                return
            if isinstance(result, StoreError):
                stored.set_exception(result)
            else:
                stored.set_result(not result)

        try:
            event = entry.event
            if frees and event.key is not None and (entry.blocks_key or await self._blocks_key(event)):
                changes.append(Block(event.partition, event.tenant, event.key, NOBODY))
            self._scribe.submit(changes, finish, must=False)
        except BaseException:
            self._put_back(entry, was)
            raise
        return await stored

    def _edited(self, entry: Entry, was: Phase | None, change: Change, *, made: bool, freed: bool) -> None:
        self._floor.forget(entry)
        after = change.after if made and isinstance(change, Move) else None
        stays = after if after is not None and was is Phase.READY and after.due_at == entry.event.due_at else None
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
        if entry.doomed:
            entry.doomed = False
            entry.phase = Phase.UNDER_WAY
            if entry.unheard is not None:
                entry.dispatcher.on_settled(entry, entry.unheard)
            entry.wake_waiters()
        elif was is Phase.AHEAD:
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
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def ask() -> None:
            blocks = await self._lanes.blocks(event)
            if not answer.done():
                answer.set_result(blocks)

        self._scribe.read(ask)
        return await answer


async def _until_settled(entry: Entry) -> None:
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not settled.done():
            settled.set_result(None)

    entry.when_settled(wake)
    await settled
