"""The one task that writes to the store and loads from it.

Changes that arrive during a write form the next group. So a thousand changes share one fsync, and a single change does
not wait for others. A remote store prepares a group before it sends it. While there is much to write, the next group is
prepared during a write, and sent before the callbacks of the last group run. A read ends such a sequence of writes.

Reads that decide which events are in memory run in the same task, one operation at a time. So the result of a read and
the changes that are stored after it can never be seen in the wrong order, on any store.

- The disk is full or the store is unavailable: requests of users are refused, and changes that have already happened
  (outcomes of attempts) are kept and retried.
- The store is broken: nothing more is written, and the engine ends.
- Another node has taken partitions: changes of those partitions are refused, and the rest of the group is written.
- The store does not answer: the changes that it was given wait, for their outcome is unknown. New events are refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf

from everbell.engine.supervisor import Supervisor
from everbell.engine.write_queue import OnStored, WriteGroup, WriteQueue, failing
from everbell.errors import Fenced, StoreBroken, StoreError, StoreFull, StoreUnavailable
from everbell.stores.fence_checks import partitions_of
from everbell.stores.port import Change, Refusal, Store

StoreRead = Callable[[], Awaitable[object]]

# The number of changes in one unit, which is one atomic write. The store knows the best size of a group of units.
GROUP_CHANGES_MAX = 1_000
READS_PER_WRITE = 2
# The same for reads that a caller awaits: a change starts with the read of one event, so 64 changes share a write.
ASKED_PER_WRITE = 64
# While due events have no room in memory, this many turns of the loop deliver events before new ones are stored.
# Otherwise events that come in faster than they go out would have to be read from the store again.
TURNS_GIVEN = 4
_FULL_RETRY_S = 0.5
# A store that was away works again at once: its first answers need not wait.
_AWAY_RETRY_S = 0.1
# How long new events wait for a store that does not answer before they are refused.
_ANSWER_S = 3.0


def _ignore(_: object) -> None:
    """Ignore an error that no caller awaits, or changes that no caller wants back."""


class StoreWriter:
    """Runs until it is stopped. `submit`, `take_in` and `read` may be called at any time on the loop."""

    def __init__(
        self,
        store: Store,
        epochs: Mapping[int, int],
        supervisor: Supervisor,
        on_fenced: Callable[[Sequence[int]], None],
        on_unstored: Callable[[Sequence[Change]], None] = _ignore,
    ) -> None:
        self._store = store
        self._epochs = epochs
        self._supervisor = supervisor
        self._on_fenced = on_fenced
        self._on_unstored = on_unstored
        self._queue = WriteQueue()
        # The next group, if it is prepared already.
        self._ready: WriteGroup | None = None
        self._writing: WriteGroup | None = None
        self._reads: deque[tuple[int, StoreRead, Callable[[StoreError], None]]] = deque()
        # All units up to this number are stored, or were refused.
        self._stored = 0
        # The error because of which nothing can be stored now, its start, and the time of the next try.
        self._full: StoreFull | StoreUnavailable | None = None
        self._full_since_s = 0.0
        self._full_until_s = 0.0
        self._broken: StoreError | None = None
        self._idle_work: Callable[[], StoreRead | None] = lambda: None
        # The next read of idle work, if it has been chosen.
        self._idle: StoreRead | None = None
        self._is_crowded: Callable[[], bool] = lambda: False
        self._gather: Callable[[], None] = lambda: None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(
        self,
        idle_work: Callable[[], StoreRead | None],
        is_crowded: Callable[[], bool] = lambda: False,
        gather: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the task. `idle_work` returns a read for times without other reads. `is_crowded` tells whether due
        events wait for room in memory. `gather` submits the outcomes that wait for the next write."""
        self._idle_work = idle_work
        self._is_crowded = is_crowded
        self._gather = gather
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-writer")

    def submit(self, changes: Sequence[Change], done: OnStored, *, must: bool) -> None:
        """Store changes of existing events, and call back."""
        if self._broken is not None and not must:
            raise self._broken.as_value()
        self._queue.submit(changes, done, must=must)
        self._wake.set()

    def take_in(self, changes: Sequence[Change], done: OnStored) -> None:
        """Store new events, and call back.

        They are stored after all other changes, so that a flood of new events does not delay outcomes. Raises
        `Overloaded` if too many are waiting already, `StoreFull` and `StoreUnavailable`.
        """
        self._check_room()
        self._queue.take_in(changes, done)
        self._wake.set()

    def read(self, operation: StoreRead, failed: Callable[[StoreError], None] = _ignore) -> None:
        """Run a read after all changes that were submitted before. `failed` is called if the store breaks first."""
        if self._broken is not None:
            failed(self._broken)
            return
        self._reads.append((self._queue.submitted, operation, failed))
        self._wake.set()

    async def caught_up(self) -> None:
        """Wait until all changes that have been submitted so far are stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def tell() -> None:
            if not stored.done():
                stored.set_result(None)

        self.read(tell, failing(stored))
        await stored

    @property
    def trouble(self) -> tuple[StoreError, int] | None:
        """The error because of which nothing can be stored, and its age in milliseconds. None: the store works."""
        if self._full is None:
            return None
        return self._full, int((_now_s() - self._full_since_s) * 1_000)

    def wake(self) -> None:
        """Check for idle work."""
        self._wake.set()

    async def stop(self) -> None:
        """Store the submitted changes, then end."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._broken is None and (self._may_write() or not self._stopping):
                if self._may_write():
                    # Changes that are submitted later in this turn of the loop share the fsync.
                    for _ in range(TURNS_GIVEN if self._queue.intake and self._is_crowded() else 1):
                        await asyncio.sleep(0)
                    await self._write()
                if not await self._read_some() and not self._may_write() and not self._stopping:
                    await self._rest()
        except Exception as broken:
            # This task is the only writer: an error that ends it must end the engine.
            self._supervisor.end(broken)
            self.fail(broken)

    def fail(self, fault: BaseException) -> None:
        """Write nothing more, because the engine has ended, and fail all callers."""
        if self._broken is None:
            self._broken = fault if isinstance(fault, StoreError) else StoreBroken(f"the engine failed: {fault!r}")
            self._give_up(self._broken)
            self._wake.set()

    async def _read_some(self) -> bool:
        """Run a few reads for each write, so that a backlog is read about as fast as it is delivered."""
        count = 0
        while count < READS_PER_WRITE or (count < ASKED_PER_WRITE and self._is_asked()):
            following = None if self._left_s() else self._next_read()
            if following is None:
                return count > 0
            read, failed = following
            try:
                with self._watched():
                    await read()
                if isinstance(self._full, StoreUnavailable):
                    self._full = None  # The store is available again.
            except StoreUnavailable as away:
                self._reads.appendleft((0, read, failed))
                self._pause(away)
                return False
            count += 1
            await asyncio.sleep(0)  # An embedded store reads without awaiting: other tasks run here.
        return True

    def _is_asked(self) -> bool:
        """Whether a submitted read may run now."""
        return bool(self._reads) and self._reads[0][0] <= self._stored

    async def _rest(self) -> None:
        """Wait until there is work, or, if the store cannot be used, until the next try."""
        self._wake.clear()
        left_s = self._left_s()
        if left_s == 0:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), left_s)

    def _left_s(self) -> float:
        """The time until the next try of a store that is full or unavailable.

        Less than a millisecond counts as 0: the clock of a loop may be unable to wait for it.
        """
        left_s = 0.0 if self._full is None else self._full_until_s - _now_s()
        return left_s if left_s > 0.001 else 0.0

    def _may_write(self) -> bool:
        if not self._queue and self._ready is None:
            return False
        if self._stopping and self._full is not None and self._full_until_s > 0:
            return False  # No room: pending outcomes are dropped, and their attempts repeat after the restart.
        return self._left_s() == 0

    def _next_read(self) -> tuple[StoreRead, Callable[[StoreError], None]] | None:
        """Take the next submitted read, if the changes submitted before it are stored, or else idle work."""
        if self._is_asked():
            _, read, failed = self._reads.popleft()
            return read, failed
        idle_work, self._idle = self._idle_read(), None
        return None if idle_work is None else (idle_work, _ignore)

    def _wants_read(self) -> bool:
        """Whether there is a read to run now."""
        return self._is_asked() or self._idle_read() is not None

    def _idle_read(self) -> StoreRead | None:
        """Choose idle work. The choice stays until the work is done."""
        if self._stopping:
            return None
        self._idle = self._idle or self._idle_work()
        return self._idle

    async def _write(self) -> None:
        """Write a group, and the next groups directly after it while one is ready and no read waits."""
        self._gather()
        group = self._take_ready() or self._queue.next_group(self._store.group_changes)
        refused = await self._written(group)
        while self._ready is not None and not self._wants_read():
            following = self._take_ready()
            assert following is not None
            writing = asyncio.get_running_loop().create_task(self._written(following))
            try:
                for tell in _reports(group, refused):
                    await asyncio.sleep(0)  # The next write is running, and may need the loop.
                    tell()
                group, refused = following, await writing
            finally:
                writing.cancel()
        if self._broken is None:  # Otherwise the callers have been told that the outcome is unknown.
            for tell in _reports(group, refused):
                tell()

    def _take_ready(self) -> WriteGroup | None:
        ready, self._ready = self._ready, None
        return ready

    async def _written(self, group: WriteGroup) -> Mapping[int, Refusal] | None:
        """Write a group. Returns the refused changes, or None if the group was not written and was put back."""
        self._writing = group
        try:
            with self._watched():
                refused = await self._while_preparing(self._apply(group.changes))
        except StoreUnavailable as away:
            self._pause(away)
            self._hold(away, refuse_changes=True)
            return None
        except StoreFull as full:
            # New events are refused first: the store keeps a reserve, so there may be room for the other changes.
            had_new = any(unit.is_new for unit in group.units)
            self._fail(full, 0.0 if had_new else _now_s() + _FULL_RETRY_S)
            self._hold(full, refuse_changes=not had_new)
            return None
        self._writing = None
        self._full = None
        self._stored = self._queue.stored(self._ready)
        return refused

    async def _while_preparing(self, apply: Awaitable[Mapping[int, Refusal]]) -> Mapping[int, Refusal]:
        """Await a write. If the store can prepare groups, prepare the next group meanwhile."""
        enough, preparer = self._store.group_changes, self._store.preparer
        if preparer is None:
            return await apply
        applying = asyncio.ensure_future(apply)
        applying.add_done_callback(lambda _: self._wake.set())
        try:
            while not applying.done():
                if self._ready is None and self._queue.size >= enough // 2 and not self._is_crowded():
                    self._ready = following = self._queue.next_group(enough)
                    await preparer.prepare(following.changes)
                else:
                    self._wake.clear()
                    await self._wake.wait()
            return applying.result()
        finally:
            applying.cancel()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Refuse new events if the store takes too long to answer."""
        overdue = self._supervisor.call_later(_ANSWER_S, self._refuse_new)
        try:
            yield
        finally:
            overdue.cancel()
            if self._full_until_s == inf:
                self._full, self._full_until_s = None, 0.0

    def _refuse_new(self) -> None:
        """Refuse new events, because the store does not answer. Events that it was given already may be stored."""
        away = StoreUnavailable("the store does not answer")
        self._fail(away, inf)
        self._put_back_ready()
        for unit in self._queue.take_new():
            unit.done(away)

    def _put_back_ready(self) -> None:
        ready = self._take_ready()
        if ready is not None:
            self._queue.put_back(ready)

    def _give_up(self, broken: StoreError) -> None:
        """Fail all callers, because the outcome is unknown. Outcomes of attempts are dropped."""
        self._put_back_ready()
        if self._writing is not None:
            self._queue.put_back(self._writing)
        for tell in [*(unit.done for unit in self._queue.take_refusable()), *(failed for _, _, failed in self._reads)]:
            with suppress(Exception):  # The engine has ended already. The other callers need their answers.
                tell(broken)

    def _check_room(self) -> None:
        if self._broken is not None:
            raise self._broken.as_value()
        if self._full is not None and self._left_s() > 0:
            raise self._full.as_value()

    async def _apply(self, changes: list[Change]) -> Mapping[int, Refusal]:
        """Write the changes of partitions that this node still owns, and refuse the others."""
        try:
            return await self._store.apply(changes, self._epochs)
        except Fenced as fenced:
            self._on_fenced(fenced.partitions)
        kept = [index for index, change in enumerate(changes) if self._epochs.keys() >= partitions_of([change])]
        assert len(kept) < len(changes), "a fenced engine no longer claims the partition"
        refused: dict[int, Refusal] = dict.fromkeys(sorted(set(range(len(changes))) - set(kept)), Refusal(None))
        self._on_unstored([changes[index] for index in refused])
        if kept:
            again = await self._apply([changes[index] for index in kept])
            refused.update((kept[index], refusal) for index, refusal in again.items())
        return refused

    def _pause(self, away: StoreUnavailable) -> None:
        """Retry later."""
        self._fail(away, _now_s() + _AWAY_RETRY_S)

    def _fail(self, why: StoreFull | StoreUnavailable, until_s: float) -> None:
        if self._full is None:
            self._full_since_s = _now_s()
        self._full, self._full_until_s = why, until_s

    def _hold(self, full: StoreError, *, refuse_changes: bool) -> None:
        """Put back a group that was not written. Refuse the units that may be refused, and keep the others in order."""
        self._put_back_ready()
        assert self._writing is not None, "the group that was not written"
        self._queue.put_back(self._writing)
        self._writing = None
        refused = self._queue.take_refusable() if refuse_changes else self._queue.take_new()
        self._stored = self._queue.stored()
        for unit in refused:
            unit.done(full)


def _reports(group: WriteGroup, refused: Mapping[int, Refusal] | None) -> Iterator[Callable[[], None]]:
    """The callbacks of a group that was written, one for each unit."""
    start = 0
    for unit in group.units if refused is not None else ():
        end = start + len(unit.changes)
        own = {i - start: refused[i] for i in range(start, end) if i in refused} if refused else {}
        yield partial(unit.done, own)
        start = end


def _now_s() -> float:
    return asyncio.get_running_loop().time()
