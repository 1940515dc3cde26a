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

from everbell.errors import Overloaded, StoreError, StoreFull
from everbell.stores.port import Change, Refusal, Store

Done = Callable[[Mapping[int, Refusal] | StoreError], None]
"""Told when a unit was stored, with the refused changes by their index in the unit; or why it was not."""

Read = Callable[[], Awaitable[None]]

GROUP_CHANGES_MAX = 1_000
"""A group is one atomic write; a larger one would save little of the fsync and hold up the loop for longer."""
QUEUED_CHANGES_MAX = 200_000
_FULL_RETRY_S = 0.5


class Unit:
    """Changes that are stored in one atomic write. `must` marks what has happened already and cannot be refused."""

    __slots__ = ("changes", "done", "must")

    def __init__(self, changes: Sequence[Change], done: Done, must: bool) -> None:
        self.changes = changes
        self.done = done
        self.must = must


class Scribe:
    """Runs until stopped; `submit` and `read` may be called at any time on the loop."""

    def __init__(self, store: Store, epoch: int, on_broken: Callable[[BaseException], None]) -> None:
        self._store = store
        self._epoch = epoch
        self._on_broken = on_broken
        self._units: deque[Unit] = deque()
        self._queued = 0
        self._reads: deque[tuple[int, Read]] = deque()
        self._submitted = 0
        self._stored = 0
        self._idle_work: Callable[[], Read | None] = lambda: None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self, idle_work: Callable[[], Read | None]) -> None:
        """Begin. `idle_work` is asked for a read of its own whenever there is room for one."""
        self._idle_work = idle_work
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-scribe")

    def submit(self, changes: Sequence[Change], done: Done, *, must: bool) -> None:
        """Store the changes, and call back.

        Raises `Overloaded` when too much is waiting already, unless they `must`.
        """
        if self._queued >= QUEUED_CHANGES_MAX and not must:
            raise Overloaded("the store is too slow for what comes in; nothing of this request was stored")
        self._units.append(Unit(changes, done, must))
        self._submitted += 1
        self._queued += len(changes)
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
            while self._units or not self._stopping:
                if self._units:
                    await self._write(self._next_group())
                read = self._next_read()
                if read is not None:
                    await read()
                    await asyncio.sleep(0)  # An embedded store reads without waiting: the others have their turn here.
                elif not self._units and not self._stopping:
                    self._wake.clear()
                    await self._wake.wait()
        except Exception as broken:
            # This loop is the only writer: whatever ends it ends the engine, loudly.
            self._on_broken(broken)

    def _next_read(self) -> Read | None:
        """A read that may run now: one that was asked for, once all that was submitted before it is stored, or idle
        work."""
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
        self._queued -= size
        return group

    async def _write(self, group: list[Unit]) -> None:
        changes: list[Change] = []
        for unit in group:
            changes.extend(unit.changes)
        try:
            refused = await self._store.apply(changes, self._epoch)
        except StoreFull as full:
            await self._write_what_must(group, full)
        else:
            self._report(group, refused)

    async def _write_what_must(self, group: list[Unit], full: StoreFull) -> None:
        """The disk is full: refuse what can be refused, keep what cannot and try it again until it fits."""
        kept = [unit for unit in group if unit.must]
        self._refuse([unit for unit in group if not unit.must], full)
        while kept:
            changes = [change for unit in kept for change in unit.changes]
            try:
                refused = await self._store.apply(changes, self._epoch)
            except StoreFull:
                if self._stopping:
                    return  # Their attempts will be made again after the restart: the outcome counts as unknown.
                self._refuse_queued(full)
                await asyncio.sleep(_FULL_RETRY_S)
                kept.extend(self._next_group())
            else:
                self._report(kept, refused)
                return

    def _refuse_queued(self, full: StoreFull) -> None:
        waiting = list(self._units)
        self._units = deque(unit for unit in waiting if unit.must)
        self._queued = sum(len(unit.changes) for unit in self._units)
        self._refuse([unit for unit in waiting if not unit.must], full)

    def _refuse(self, units: list[Unit], full: StoreFull) -> None:
        self._stored += len(units)
        for unit in units:
            unit.done(full)

    def _report(self, group: list[Unit], refused: Mapping[int, Refusal]) -> None:
        self._stored += len(group)
        start = 0
        for unit in group:
            end = start + len(unit.changes)
            unit.done({i - start: refused[i] for i in range(start, end) if i in refused} if refused else refused)
            start = end
