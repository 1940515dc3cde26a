"""Edits: how a change that a user asks for meets an event that may become due at any moment.

Before a change is stored, the event is taken out of the working set, or reserved there if it was not in memory. From
then on no attempt can start. The event comes back if the change cannot be stored. That makes an acknowledged cancel
exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from everbell.core.event import Event, Record, is_paused
from everbell.engine.entry import Entry, Phase, until_settled
from everbell.engine.intake import not_owner, unmet
from everbell.engine.marks import NO_HEAD
from everbell.engine.ordering import Lanes
from everbell.engine.partition import Partition
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import StoreWriter, failing
from everbell.errors import Conflict, EverbellError, NotFound, StoreError, VersionMismatch
from everbell.stores.port import Block, Change, Move, Refusal, Store

# Makes the change to store from the event as it is now.
Edit = Callable[[Event], Change]

R = TypeVar("R")
D = TypeVar("D")


class _TakenEntry(NamedTuple):
    """An entry that was taken for a change, its phase before (None: it was not in memory), and the change to store."""

    entry: Entry
    was: Phase | None
    change: Change


class Edits:
    """Stores changes of events, one at a time for each event."""

    def __init__(
        self, store: Store, partitions: Sequence[Partition], memory: WorkingSet, writer: StoreWriter, lanes: Lanes
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._memory = memory
        self._writer = writer
        self._lanes = lanes

    async def find(self, tenant: str, event_id: str) -> Event | Record:
        """Return the stored event or record. Raises `NotFound`."""
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
        """Store a change of an event. No attempt of its old form starts afterwards.

        `frees`: if the event blocks its key, the change unblocks the key.
        """

        def take(found: Event | Record | None) -> _TakenEntry | Entry:
            """Take the event in the same turn of the loop in which it was read.

            An entry that is settling is returned instead: the caller has to wait for it.
            """
            stored = _known(found, event_id)
            if isinstance(stored, Record):
                raise Conflict(f"the event is already {stored.status}")
            if not self._partitions[stored.partition].epoch:
                raise not_owner(stored.partition)
            entry = self._memory.entries.get(stored.sequence)
            if entry is not None and entry.phase is Phase.SETTLING:
                return entry
            event = stored if entry is None else entry.event
            if version is not None and event.version != version:
                raise VersionMismatch(f"the event has version {event.version}, not {version}")
            change = edit(event)
            was = None if entry is None else entry.phase
            if entry is None:
                entry = self._memory.reserve(event)
                self._lanes.begin_change(entry)
            elif entry.in_flight and not cancels:
                raise Conflict("the event is being delivered at this moment; try again when the attempt is over")
            else:
                entry.is_cancelled = entry.in_flight
                entry.phase = Phase.SETTLING
                self._lanes.begin_change(entry)
            return _TakenEntry(entry, was, change)

        while True:
            taken = await self._take(tenant, event_id, take)
            if isinstance(taken, Entry):
                # It may have settled between the decision and this turn; then nothing would wake this caller.
                if taken.phase is Phase.SETTLING:
                    await until_settled(taken)
            elif await self._store_edit(taken.entry, taken.was, taken.change, frees):
                return taken.change

    async def _take(
        self, tenant: str, event_id: str, take: Callable[[Event | Record | None], _TakenEntry | Entry]
    ) -> _TakenEntry | Entry:
        """Read an event and take it. Only if this returns, the caller has to put back or store the taken entry."""
        taken: _TakenEntry | Entry | None = None

        def decide(found: Event | Record | None) -> _TakenEntry | Entry:
            nonlocal taken
            taken = take(found)
            return taken

        try:
            return await self.read(lambda: self._store.get(tenant, event_id), decide)
        except BaseException:
            # The caller may be cancelled after `take` has decided and before it gets the result.
            if isinstance(taken, _TakenEntry):
                self._put_back(taken.entry, taken.was)
            raise

    async def _store_edit(self, entry: Entry, was: Phase | None, change: Change, frees: bool) -> bool:
        """Store the change of a taken entry, which was in phase `was`, or not in memory for None.

        Returns False if the stored event was not the one that the change names.

        The callback does the rest, so the rest happens even if the caller is cancelled meanwhile.
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
                changes.append(Block(event.partition, event.tenant, event.key, NO_HEAD))
            if entry.phase is Phase.GONE:
                # The partition left this node during the read: another node may have the event by now.
                raise not_owner(event.partition)
            self._writer.submit(changes, finish, must=False)
        except BaseException:
            self._put_back(entry, was)
            raise
        return await stored

    def _edited(self, entry: Entry, was: Phase | None, change: Change, *, made: bool, freed: bool) -> None:
        self._memory.forget(entry)
        after = change.after if made and isinstance(change, Move) else None
        stays = None
        if after is not None and was is Phase.READY and after.due_at == entry.event.due_at and not is_paused(after):
            stays = after
        if after is not None and after.state == "scheduled" and (stays is None or after.key is None):
            self._memory.arrive(after)
        self._let_key_go_on(entry, stays, freed and made)

    def _let_key_go_on(self, entry: Entry, stays: Event | None, freed: bool) -> None:
        """`stays`: the event that replaces the entry in its key's line, if any."""
        event = entry.event
        if event.key is None or entry.in_flight:
            return
        self._lanes.end_change(entry, stays)
        if freed:
            self._lanes.resume(event.partition, event.tenant, event.key)

    def _put_back(self, entry: Entry, was: Phase | None) -> None:
        """Return an entry to its place, because its change was not stored."""
        if entry.phase is Phase.GONE:
            # Its partition left this node. If the partition came back since, the event has another entry.
            self._lanes.end_change(entry, None)
        elif entry.is_cancelled:
            entry.is_cancelled = False
            entry.phase = Phase.IN_FLIGHT
            if entry.ignored_outcome is not None:
                entry.dispatcher.on_settled((entry,), entry.ignored_outcome)
            entry.wake_waiters()
        elif was is Phase.AHEAD and self._partitions[entry.event.partition].is_open:
            entry.phase = Phase.AHEAD
            self._memory.put_back(entry)
            self._lanes.end_change(entry, None)
            entry.wake_waiters()
        else:
            self._memory.forget(entry)
            event = entry.event
            in_line = was is Phase.READY and event.key is not None
            if event.state == "scheduled" and not in_line:
                self._memory.arrive(event)
            self._let_key_go_on(entry, event if in_line else None, freed=False)

    async def _blocks_key(self, event: Event) -> bool:
        return await self.read(lambda: self._lanes.marks.blocks(event), lambda blocks: blocks)

    async def read(self, ask: Callable[[], Awaitable[R]], decide: Callable[[R], D]) -> D:
        """Read from the store between two writes, and decide before anything else can be read or stored."""
        answer: asyncio.Future[D] = asyncio.get_running_loop().create_future()

        async def operation() -> None:
            if answer.done():
                return  # The caller was cancelled.
            try:
                found = await ask()
            except EverbellError as refused:
                if not answer.done():
                    answer.set_exception(refused)
                return
            if answer.done():
                return  # The caller was cancelled during the read: no component would act on a decision.
            try:
                answer.set_result(decide(found))
            except Exception as refused:
                # This includes errors that only a bug in `decide` can raise: they must not stop the store writer.
                answer.set_exception(refused)

        self._writer.read(operation, failing(answer))
        return await answer


def _known(found: Event | Record | None, event_id: str) -> Event | Record:
    if found is None:
        raise NotFound(f"there is no event {event_id!r}, or it ended longer ago than the tenant's retention")
    return found
