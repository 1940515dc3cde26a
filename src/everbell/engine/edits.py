"""Edits: how a change that a user asks for meets an event that may become due at any moment.

Before a change is stored, the event is taken out of the working set, or reserved there if it was not in memory. From
then on no attempt can start. The event comes back if the change cannot be stored. That makes an acknowledged cancel
exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from everbell.core.event import Event, Record, is_paused
from everbell.engine.entry import Entry, Phase, until_settled
from everbell.engine.intake import not_owner, unmet
from everbell.engine.marks import NO_HEAD
from everbell.engine.ordering import Lanes
from everbell.engine.partition import Partition
from everbell.engine.supervisor import Supervisor
from everbell.engine.working_set import WorkingSet
from everbell.engine.write_queue import failing
from everbell.engine.writer import StoreWriter
from everbell.errors import Conflict, EverbellError, NotFound, StoreError, VersionMismatch
from everbell.stores.port import Block, Change, Finish, Move, Refusal, Store

# Makes the change to store from the event as it is now.
Edit = Callable[[Event], Change]

R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")


class TakenEntry(NamedTuple):
    """An entry that was taken for a change, its phase before (None: it was not in memory), and the change to store."""

    entry: Entry
    was: Phase | None
    change: Change


class Edits:
    """Stores changes of events, one at a time for each event."""

    def __init__(
        self,
        store: Store,
        partitions: Sequence[Partition],
        memory: WorkingSet,
        writer: StoreWriter,
        lanes: Lanes,
        supervisor: Supervisor,
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._memory = memory
        self._writer = writer
        self._lanes = lanes
        self._supervisor = supervisor

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

        def take(found: Sequence[Event | Record | None]) -> list[TakenEntry | Entry]:
            stored = _known(found[0], event_id)
            if isinstance(stored, Record):
                raise Conflict(f"the event is already {stored.status}")
            entry, event = self.live(stored)
            if entry is not None and entry.phase is Phase.SETTLING:
                return [entry]
            if version is not None and event.version != version:
                raise VersionMismatch(f"the event has version {event.version}, not {version}")
            change = edit(event)
            if entry is not None and entry.in_flight and not cancels:
                raise Conflict("the event is being delivered at this moment; try again when the attempt is over")
            return [self.take(entry, event, change)]

        while True:
            [taken] = await self.read_and_take(tenant, [event_id], take)
            if isinstance(taken, Entry):
                await self.settled(taken)
                continue
            with self._supervisor.critical(expected=EverbellError):
                [result] = await self.store_all([taken], frees=frees)
            if isinstance(result, EverbellError):
                raise result
            if result:
                return taken.change

    def live(self, stored: Event) -> tuple[Entry | None, Event]:
        """The entry of a stored event, if it is in memory, and the event as it is now. Raises `NotOwner`."""
        if not self._partitions[stored.partition].epoch:
            raise not_owner(stored.partition)
        entry = self._memory.entries.get(stored.sequence)
        return (None, stored) if entry is None else (entry, entry.event)

    def take(self, entry: Entry | None, event: Event, change: Change) -> TakenEntry:
        """Take an event for a change, in the same turn of the loop in which it was read. No attempt starts from now."""
        was = None if entry is None else entry.phase
        with self._supervisor.critical():
            if entry is None:
                entry = self._memory.reserve(event)
            else:
                entry.is_cancelled = entry.in_flight
                entry.phase = Phase.SETTLING
            self._lanes.begin_change(entry)
        return TakenEntry(entry, was, change)

    async def settled(self, entry: Entry) -> None:
        """Wait for the change of an entry that another caller has taken."""
        # It may have settled between the decision and this turn; then nothing would wake this caller.
        if entry.phase is Phase.SETTLING:
            await until_settled(entry)

    async def read_and_take(
        self, tenant: str, event_ids: Sequence[str], take: Callable[[Sequence[Event | Record | None]], Iterable[T]]
    ) -> list[T]:
        """Read events and take some. Only if this returns, the caller has to store the changes of taken entries."""
        taken: list[T] = []

        def decide(found: Sequence[Event | Record | None]) -> list[T]:
            taken.extend(take(found))
            return taken

        try:
            return await self.read(lambda: self._found(tenant, event_ids), decide)
        except BaseException:
            # The caller may be cancelled after `take` has decided and before it gets the result.
            for one in taken:
                if isinstance(one, TakenEntry):
                    self._put_back(one.entry, one.was)
            raise

    async def _found(self, tenant: str, event_ids: Sequence[str]) -> Sequence[Event | Record | None]:
        if len(event_ids) == 1:
            return [await self._store.get(tenant, event_ids[0])]  # Several stores find one event faster.
        return await self._store.get_many(tenant, event_ids)

    async def store_all(self, taken: Sequence[TakenEntry], *, frees: bool = True) -> Sequence[bool | EverbellError]:
        """Store the changes of taken entries in one write.

        Returns for each an error, or False if the stored event was not the one that the change names. The callback does
        the rest, so the rest happens even if the caller is cancelled meanwhile.
        """
        stored: asyncio.Future[Sequence[bool | EverbellError]] = asyncio.get_running_loop().create_future()
        freed: set[int] = set()

        def finish(told: Mapping[int, Refusal] | StoreError) -> None:
            results = self._settle(taken, told, freed)
            if not stored.done():
                stored.set_result(results)

        try:
            changes = [one.change for one in taken]
            if frees:
                for index, event in (await self._blocking(taken)).items():
                    freed.add(index)
                    changes.append(Block(event.partition, event.tenant, event.key or "", NO_HEAD))
            gone = next((one.entry for one in taken if one.entry.phase is Phase.GONE), None)
            if gone is not None:
                # The partition left this node during the read: another node may have the event by now.
                raise not_owner(gone.event.partition)
            self._writer.submit(changes, finish, must=False)
        except BaseException:
            for one in taken:
                self._put_back(one.entry, one.was)
            raise
        return await stored

    async def _blocking(self, taken: Sequence[TakenEntry]) -> dict[int, Event]:
        """The events that block their keys, by their index."""
        blocking: dict[int, Event] = {}
        for index, one in enumerate(taken):
            event = one.entry.event
            if event.key is not None and (one.entry.blocks_key or await self._blocks_key(event)):
                blocking[index] = event
        return blocking

    def _settle(
        self, taken: Sequence[TakenEntry], told: Mapping[int, Refusal] | StoreError, freed: Container[int]
    ) -> list[bool | EverbellError]:
        """Go on after the changes of taken entries, and return the result of each."""
        results: list[bool | EverbellError] = []
        arrived: list[Event] = []
        for index, one in enumerate(taken):
            result = True if not told else _result_of(told, index)
            results.append(result)
            if isinstance(result, EverbellError):
                self._put_back(one.entry, one.was)
            elif one.entry.event.key is not None:
                self._edited(one, made=result, freed=index in freed)
            else:
                self._memory.forget(one.entry)
                after = _after(one.change) if result else None
                if after is not None and after.state == "scheduled":
                    arrived.append(after)
        self._memory.arrive_all(arrived)
        return results

    def _edited(self, taken: TakenEntry, *, made: bool, freed: bool) -> None:
        """Go on after the change of an event with a key."""
        entry, was, change = taken
        self._memory.forget(entry)
        after = change.after if made and isinstance(change, Move) else None
        stays = None
        if after is not None and was is Phase.READY and after.due_at == entry.event.due_at and not is_paused(after):
            stays = after
        if after is not None and after.state == "scheduled" and stays is None:
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
        with self._supervisor.critical():
            self._return(entry, was)

    def _return(self, entry: Entry, was: Phase | None) -> None:
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
        if not self._lanes.marks.perhaps(event.tenant, event.key or ""):
            return False
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


def _result_of(told: Mapping[int, Refusal] | StoreError, index: int) -> bool | EverbellError:
    """Whether a change of a unit was made, or why it could not be."""
    if isinstance(told, StoreError):
        return told
    refusal = told.get(index)
    return True if refusal is None else unmet(refusal) if refusal.unmet else False


def _known(found: Event | Record | None, event_id: str) -> Event | Record:
    if found is None:
        raise NotFound(f"there is no event {event_id!r}, or it ended longer ago than the tenant's retention")
    return found


def _after(change: Change) -> Event | None:
    """The event after a change. Only another node tells that an occurrence has ended; users end whole events."""
    if isinstance(change, Finish):
        return change.following
    return change.after if isinstance(change, Move) else None
