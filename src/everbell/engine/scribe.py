"""The one task that writes to the store and loads from it.

Changes that arrive while a write is under way form the next group, so a thousand of them share one fsync and one
alone waits for nobody. A store far away has something to work out before it sends a group: while there is much to
write, the next group is made ready during a write, and sent before those of the last one are told; reads end that.

Reads that decide what is in memory go through the same line, one operation at a time: what a read returns and what is
stored right after it can never be seen in the wrong order, on any store.

When the disk is full or the store is away, what users ask for is refused and what has already happened (outcomes of
attempts) is kept and tried again; when the store is broken, nothing more is written and the engine is told to end. When
another node has taken partitions, what was to be written to them is refused, and the rest of the group is written. When
the store does not answer, whoever gave it something has to wait, for nobody knows the outcome; new events are refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, cast

from everbell.engine.backlog import Backlog, Done, Group
from everbell.errors import Fenced, StoreBroken, StoreError, StoreFull, StoreUnavailable
from everbell.stores.port import Change, Refusal, Store, Write
from everbell.stores.semantics import partitions_of

Read = Callable[[], Awaitable[object]]

GROUP_CHANGES_MAX = 1_000
"""Of one unit, which is stored in one atomic write. How many make a good group of units, the store knows."""
READS_PER_WRITE = 2
ASKED_PER_WRITE = 64
"""The same for what somebody waits for: a change that a user makes begins with the read of one event, so this many of
them share a write."""
TURNS_GIVEN = 4
"""While due events have no room in memory, this many turns of the loop go to those that have, before new events are
stored: else whatever comes in faster than it goes out would have to be read again."""
_FULL_RETRY_S = 0.5
_ANSWER_S = 3.0
"""How long new events wait for the store to answer somebody before they are refused."""


def _ignore(error: StoreError) -> None:
    """Nobody waits for the read."""


class Scribe:
    """Runs until stopped; `submit`, `take_in` and `read` may be called at any time on the loop."""

    def __init__(
        self,
        store: Store,
        epochs: Mapping[int, int],
        on_broken: Callable[[BaseException], None],
        on_fenced: Callable[[Sequence[int]], None],
    ) -> None:
        self._store = store
        self._epochs = epochs
        self._on_broken = on_broken
        self._on_fenced = on_fenced
        self._backlog = Backlog()
        self._ready: Group | None = None
        """What is written next, if that has been decided."""
        self._under_way: Group | None = None
        """What is being written."""
        self._reads: deque[tuple[int, Read, Callable[[StoreError], None]]] = deque()
        self._stored = 0
        """All units up to this number are stored, or were refused."""
        self._full: StoreFull | StoreUnavailable | None = None
        """Why nothing can be stored for the moment."""
        self._full_since_s = 0.0
        self._broken: StoreError | None = None
        self._full_until_s = 0.0
        """When it is worth a try again."""
        self._idle_work: Callable[[], Read | None] = lambda: None
        self._idle: Read | None = None
        """Idle work that has been decided on."""
        self._is_crowded: Callable[[], bool] = lambda: False
        self._gather: Callable[[], None] = lambda: None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(
        self,
        idle_work: Callable[[], Read | None],
        is_crowded: Callable[[], bool] = lambda: False,
        gather: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin. `idle_work` is asked for a read of its own whenever there is room for one, `is_crowded` whether due
        events wait for room in memory; `gather` submits what was held back for the next write."""
        self._idle_work = idle_work
        self._is_crowded = is_crowded
        self._gather = gather
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-scribe")

    def submit(self, changes: Sequence[Write], done: Done, *, must: bool) -> None:
        """Store changes of events that are known already, and call back."""
        if self._broken is not None and not must:
            raise self._broken.as_value()
        self._backlog.submit(changes, done, must=must)
        self._wake.set()

    def take_in(self, changes: Sequence[Write], done: Done) -> None:
        """Store new events, and call back.

        They come after everything else, so that a flood of them does not hold up what is under way. Raises
        `Overloaded` when too many are waiting already, `StoreFull` and `StoreUnavailable`.
        """
        self._check_room()
        self._backlog.take_in(changes, done)
        self._wake.set()

    def read(self, operation: Read, failed: Callable[[StoreError], None] = _ignore) -> None:
        """Run a read after everything that has been submitted so far; `failed` is told if the store breaks first."""
        if self._broken is not None:
            failed(self._broken)
            return
        self._reads.append((self._backlog.submitted, operation, failed))
        self._wake.set()

    async def caught_up(self) -> None:
        """Wait until everything that has been submitted so far is stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def tell() -> None:
            if not stored.done():
                stored.set_result(None)

        self.read(tell, failing(stored))
        await stored

    @property
    def trouble(self) -> tuple[StoreError, int] | None:
        """Why nothing can be stored, and for how many milliseconds already; None while all is well."""
        if self._full is None:
            return None
        return self._full, int((_now_s() - self._full_since_s) * 1_000)

    def nudge(self) -> None:
        """There may be idle work."""
        self._wake.set()

    async def stop(self) -> None:
        """Store what was submitted, then end."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._may_write() or not self._stopping:
                if self._may_write():
                    # Whoever is about to ask in this turn of the loop shares the fsync.
                    for _ in range(TURNS_GIVEN if self._backlog.intake and self._is_crowded() else 1):
                        await asyncio.sleep(0)
                    await self._write()
                if not await self._read_some() and not self._may_write() and not self._stopping:
                    await self._rest()
        except Exception as broken:
            # This loop is the only writer: whatever ends it ends the engine, loudly.
            self._broken = broken if isinstance(broken, StoreError) else StoreBroken(f"the engine failed: {broken!r}")
            self._on_broken(broken)
            self._give_up(self._broken)

    async def _read_some(self) -> bool:
        """Read a few times for one write, so that a backlog comes in about as fast as it goes out."""
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
                    self._full = None  # It is back.
            except StoreUnavailable as away:
                self._reads.appendleft((0, read, failed))
                self._pause(away)
                return False
            count += 1
            await asyncio.sleep(0)  # An embedded store reads without waiting: the others have their turn here.
        return True

    def _is_asked(self) -> bool:
        """Whether somebody waits for a read that may be done now."""
        return bool(self._reads) and self._reads[0][0] <= self._stored

    async def _rest(self) -> None:
        """Wait until there is something to do; when the store cannot be used, only until it is worth another try."""
        self._wake.clear()
        left_s = self._left_s()
        if left_s == 0:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), left_s)

    def _left_s(self) -> float:
        """How long to leave a store alone that is full or away.

        A hair does not count: a loop's clock may be unable to pass it.
        """
        left_s = 0.0 if self._full is None else self._full_until_s - _now_s()
        return left_s if left_s > 0.001 else 0.0

    def _may_write(self) -> bool:
        if not self._backlog and self._ready is None:
            return False
        if self._stopping and self._full is not None and self._full_until_s > 0:
            return False  # There is no room: what is left is attempted again after the restart, its outcome unknown.
        return self._left_s() == 0

    def _next_read(self) -> tuple[Read, Callable[[StoreError], None]] | None:
        """What was asked for, once all that was submitted before it is stored; or idle work."""
        if self._is_asked():
            _, read, failed = self._reads.popleft()
            return read, failed
        idle_work, self._idle = self._idle_read(), None
        return None if idle_work is None else (idle_work, _ignore)

    def _wants_read(self) -> bool:
        """Whether there is a read to do now."""
        return self._is_asked() or self._idle_read() is not None

    def _idle_read(self) -> Read | None:
        """Idle work; what has been decided on stays until it is done."""
        if self._stopping:
            return None
        self._idle = self._idle or self._idle_work()
        return self._idle

    async def _write(self) -> None:
        """Write a group, and the next one right behind it as long as one is ready by then and no read waits."""
        self._gather()
        group = self._take_ready() or self._backlog.next_group(self._store.group_changes)
        refused = await self._written(group)
        while self._ready is not None and not self._wants_read():
            following = self._take_ready()
            assert following is not None
            writing = asyncio.get_running_loop().create_task(self._written(following))
            try:
                for tell in _reports(group, refused):
                    await asyncio.sleep(0)  # The store is at work on the next one, and may have to be answered.
                    tell()
                group, refused = following, await writing
            finally:
                writing.cancel()
        for tell in _reports(group, refused):
            tell()

    def _take_ready(self) -> Group | None:
        ready, self._ready = self._ready, None
        return ready

    async def _written(self, group: Group) -> Mapping[int, Refusal] | None:
        """Write a group; returns what was refused of it, or None when that was not written, and others were told."""
        self._under_way = group
        try:
            with self._watched():
                refused = await self._while_preparing(self._apply(group.changes))
        except StoreUnavailable as away:
            self._pause(away)
            self._hold(away, refuse_changes=True)
            return None
        except StoreFull as full:
            # New events are refused first, for there may be room for everything else: the store keeps some in reserve.
            had_new = any(unit.is_new for unit in group.units)
            self._fail(full, 0.0 if had_new else _now_s() + _FULL_RETRY_S)
            self._hold(full, refuse_changes=not had_new)
            return None
        self._under_way = None
        self._full = None
        self._stored = self._backlog.stored(self._ready)
        return refused

    async def _while_preparing(self, apply: Awaitable[Mapping[int, Refusal]]) -> Mapping[int, Refusal]:
        """Wait for a write. Where that pays, the next group is made ready meanwhile."""
        enough = self._store.group_changes
        if not self._store.prepares:
            return await apply
        writing = asyncio.ensure_future(apply)
        writing.add_done_callback(lambda _: self._wake.set())
        try:
            while not writing.done():
                if self._ready is None and self._backlog.size >= enough // 2 and not self._is_crowded():
                    self._ready = following = self._backlog.next_group(enough)
                    await self._store.prepare(cast(list[Change], following.changes))
                else:
                    self._wake.clear()
                    await self._wake.wait()
            return writing.result()
        finally:
            writing.cancel()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While the store is asked for something: new events do not wait for an answer for ever."""
        overdue = asyncio.get_running_loop().call_later(_ANSWER_S, self._refuse_new)
        try:
            yield
        finally:
            overdue.cancel()
            if self._full_until_s == inf:
                self._full, self._full_until_s = None, 0.0

    def _refuse_new(self) -> None:
        """The store does not answer. What it was given may be stored or not; what waits behind that is not."""
        away = StoreUnavailable("the store does not answer")
        self._fail(away, inf)
        self._put_back_ready()
        for unit in self._backlog.take_new():
            unit.done(away)

    def _put_back_ready(self) -> None:
        ready = self._take_ready()
        if ready is not None:
            self._backlog.put_back(ready)

    def _give_up(self, broken: StoreError) -> None:
        """Tell everybody who waits that the outcome is unknown. What has happened already is left as it is stored."""
        self._put_back_ready()
        if self._under_way is not None:
            self._backlog.put_back(self._under_way)
        for unit in self._backlog.take_refusable():
            unit.done(broken)
        for _, _, failed in self._reads:
            failed(broken)

    def _check_room(self) -> None:
        if self._broken is not None:
            raise self._broken.as_value()
        if self._full is not None and self._left_s() > 0:
            raise self._full.as_value()

    async def _apply(self, changes: list[Write]) -> Mapping[int, Refusal]:
        """Write what belongs to partitions that are still owned here; the rest is refused."""
        try:
            # A store that takes no parcels is given none: `Intake.allot` gives nobody places for their events.
            return await self._store.apply(cast(list[Change], changes), self._epochs)
        except Fenced as fenced:
            self._on_fenced(fenced.partitions)
        kept = [index for index, change in enumerate(changes) if self._epochs.keys() >= set(partitions_of(change))]
        assert len(kept) < len(changes), "whoever is fenced no longer claims the partition"
        refused: dict[int, Refusal] = dict.fromkeys(set(range(len(changes))) - set(kept), Refusal(None))
        if kept:
            again = await self._apply([changes[index] for index in kept])
            refused.update((kept[index], refusal) for index, refusal in again.items())
        return refused

    def _pause(self, why: StoreFull | StoreUnavailable) -> None:
        """Try again in a while."""
        self._fail(why, _now_s() + _FULL_RETRY_S)

    def _fail(self, why: StoreFull | StoreUnavailable, until_s: float) -> None:
        if self._full is None:
            self._full_since_s = _now_s()
        self._full, self._full_until_s = why, until_s

    def _hold(self, full: StoreError, *, refuse_changes: bool) -> None:
        """Nothing was written. Refuse what can be refused, and keep the rest, in its order, for another try."""
        self._put_back_ready()
        assert self._under_way is not None, "it is what was not written"
        self._backlog.put_back(self._under_way)
        self._under_way = None
        refused = self._backlog.take_refusable() if refuse_changes else self._backlog.take_new()
        self._stored = self._backlog.stored()
        for unit in refused:
            unit.done(full)


def _reports(group: Group, refused: Mapping[int, Refusal] | None) -> Iterator[Callable[[], None]]:
    """What tells those of a group that was written, unit by unit."""
    start = 0
    for unit in group.units if refused is not None else ():
        end = start + len(unit.changes)
        own = {i - start: refused[i] for i in range(start, end) if i in refused} if refused else {}
        yield partial(unit.done, own)
        start = end


def failing(future: asyncio.Future[Any]) -> Callable[[StoreError], None]:
    """What tells somebody who awaits the result of a read that there will be none."""

    def failed(error: StoreError) -> None:
        if not future.done():
            future.set_exception(error)

    return failed


def _now_s() -> float:
    return asyncio.get_running_loop().time()
