"""The one task that writes to the store and loads from it.

Changes that arrive while a write is under way form the next group, so a thousand of them share one fsync and one
alone waits for nobody. Reads that decide what is in memory go through the same line, one operation at a time: what a
read returns and what is stored right after it can never be seen in the wrong order, on any store.

When the disk is full, what users ask for is refused and what has already happened (outcomes of attempts) is kept and
tried again; when the store is broken, nothing more is written and the engine is told to end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from everbell.errors import Overloaded, StoreBroken, StoreError, StoreFull
from everbell.stores.port import Change, Refusal, Store

Done = Callable[[Mapping[int, Refusal] | StoreError], None]
"""Told when a unit was stored, with the refused changes by their index in the unit; or why it was not."""

Read = Callable[[], Awaitable[None]]

GROUP_CHANGES_MAX = 1_000
"""A group is one atomic write; a larger one would save little of the fsync and hold up the loop for longer."""
READS_PER_WRITE = 2
INTAKE_CHANGES_MAX = 50_000
_FULL_RETRY_S = 0.5


class Unit:
    """Changes that are stored in one atomic write.

    `must` marks what has happened already and cannot be refused, `is_new` what only adds events.
    """

    __slots__ = ("changes", "done", "is_new", "must")

    def __init__(self, changes: Sequence[Change], done: Done, *, must: bool, is_new: bool = False) -> None:
        self.changes = changes
        self.done = done
        self.must = must
        self.is_new = is_new


class Scribe:
    """Runs until stopped; `submit`, `take_in` and `read` may be called at any time on the loop."""

    def __init__(self, store: Store, epoch: int, on_broken: Callable[[BaseException], None]) -> None:
        self._store = store
        self._epoch = epoch
        self._on_broken = on_broken
        self._units: deque[Unit] = deque()
        self._intake: deque[Unit] = deque()
        self._intake_size = 0
        self._reads: deque[tuple[int, Read]] = deque()
        self._submitted = 0
        self._stored = 0
        self._group: list[Unit] = []
        """What is being written."""
        self._full: StoreFull | None = None
        self._broken: StoreError | None = None
        self._full_until_s = 0.0
        """When it is worth a try again."""
        self._idle_work: Callable[[], Read | None] = lambda: None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self, idle_work: Callable[[], Read | None]) -> None:
        """Begin. `idle_work` is asked for a read of its own whenever there is room for one."""
        self._idle_work = idle_work
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-scribe")

    def submit(self, changes: Sequence[Change], done: Done, *, must: bool) -> None:
        """Store changes of events that are known already, and call back."""
        if self._broken is not None and not must:
            raise self._broken
        self._units.append(Unit(changes, done, must=must))
        self._submitted += 1
        self._wake.set()

    def take_in(self, changes: Sequence[Change], done: Done) -> None:
        """Store new events, and call back.

        They come after everything else, so that a flood of them does not hold up what is under way. Raises
        `Overloaded` when too many are waiting already, and `StoreFull`.
        """
        self._check_room()
        if self._intake_size >= INTAKE_CHANGES_MAX:
            raise Overloaded("the store is too slow for what comes in; nothing of this request was stored")
        self._intake.append(Unit(changes, done, must=False, is_new=True))
        self._intake_size += len(changes)
        self._wake.set()

    def read(self, operation: Read) -> None:
        """Run a read after everything that has been submitted so far."""
        self._reads.append((self._submitted, operation))
        self._wake.set()

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
                    await asyncio.sleep(0)  # Whoever is about to ask in this turn of the loop shares the fsync.
                    await self._write(self._next_group())
                if not await self._read_some() and not self._may_write() and not self._stopping:
                    await self._rest()
        except Exception as broken:
            # This loop is the only writer: whatever ends it ends the engine, loudly.
            self._broken = broken if isinstance(broken, StoreError) else StoreBroken(f"the engine failed: {broken!r}")
            self._on_broken(broken)
            self._give_up(self._broken)

    async def _read_some(self) -> bool:
        """Read a few times for one write, so that a backlog comes in about as fast as it goes out."""
        for count in range(READS_PER_WRITE):
            read = self._next_read()
            if read is None:
                return count > 0
            await read()
            await asyncio.sleep(0)  # An embedded store reads without waiting: the others have their turn here.
        return True

    async def _rest(self) -> None:
        """Wait until there is something to do; when the disk is full, only until it is worth another try."""
        self._wake.clear()
        left_s = self._left_s()
        if left_s == 0:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), left_s)

    def _left_s(self) -> float:
        """How long to leave a full disk alone. A hair does not count: a loop's clock may be unable to pass it."""
        left_s = 0.0 if self._full is None else self._full_until_s - _now_s()
        return left_s if left_s > 0.001 else 0.0

    def _may_write(self) -> bool:
        if not self._units and not self._intake:
            return False
        if self._stopping and self._full is not None and self._full_until_s > 0:
            return False  # There is no room: what is left is attempted again after the restart, its outcome unknown.
        return self._left_s() == 0

    def _next_read(self) -> Read | None:
        """What was asked for, once all that was submitted before it is stored; or idle work."""
        if self._reads:
            after, read = self._reads[0]
            if after <= self._stored:
                self._reads.popleft()
                return read
        return None if self._stopping else self._idle_work()

    def _next_group(self) -> list[Unit]:
        group: list[Unit] = []
        size = 0
        while self._units and size < GROUP_CHANGES_MAX:
            unit = self._units.popleft()
            size += len(unit.changes)
            group.append(unit)
        while self._intake and size < GROUP_CHANGES_MAX:
            unit = self._intake.popleft()
            size += len(unit.changes)
            self._intake_size -= len(unit.changes)
            group.append(unit)
        return group

    async def _write(self, group: list[Unit]) -> None:
        self._group = group
        changes: list[Change] = []
        for unit in group:
            changes.extend(unit.changes)
        try:
            refused = await self._store.apply(changes, self._epoch)
        except StoreFull as full:
            self._group = []
            self._hold(group, full)
        else:
            self._group = []
            self._full = None
            self._report(group, refused)

    def _give_up(self, broken: StoreError) -> None:
        """Tell everybody who waits that the outcome is unknown. What has happened already is left as it is stored."""
        for unit in (*self._group, *self._units, *self._intake):
            if not unit.must:
                unit.done(broken)

    def _check_room(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._full is not None and self._left_s() > 0:
            raise self._full

    def _hold(self, group: list[Unit], full: StoreFull) -> None:
        """The disk is full: refuse what can be refused, and keep the rest, in its order, for another try.

        New events are refused first, for there may be room for everything else: the store keeps some in reserve.
        """
        had_new = any(unit.is_new for unit in group)
        self._full = full
        self._full_until_s = 0.0 if had_new else _now_s() + _FULL_RETRY_S
        waiting = [*group, *self._units, *self._intake]
        kept = [unit for unit in waiting if not unit.is_new and (had_new or unit.must)]
        self._units = deque(kept)
        self._intake.clear()
        self._intake_size = 0
        self._stored = self._submitted - len(self._units)
        for unit in waiting:
            if unit.is_new or not (had_new or unit.must):
                unit.done(full)

    def _report(self, group: list[Unit], refused: Mapping[int, Refusal]) -> None:
        self._stored = self._submitted - len(self._units)
        start = 0
        for unit in group:
            end = start + len(unit.changes)
            unit.done({i - start: refused[i] for i in range(start, end) if i in refused} if refused else refused)
            start = end


def _now_s() -> float:
    return asyncio.get_running_loop().time()
