"""Operations that are made as a whole or not at all, by the owner of their partitions, in a store without transactions.

An operation is written into the journal first: plain rows, at the level that its tenants want. Then one lightweight
transaction on the row of this writer makes it count. Only then its row changes are made. A node that takes partitions
from a writer makes the last operation of that writer once more, because the writer may have ended in between.

- *The fence* is two rows. The row of a partition names its epoch and writer. A node that takes the partition first puts
  it on the list of revoked partitions in the row of that writer, and every operation is conditional on that list being
  as its writer knows it. So once a partition is taken, no operation of its old owner can count any more, however late
  it comes. A late plain write can only repeat an operation that counted before, with its old timestamp.
- *An answer that was lost* is looked for: the number of the operation is written without the operation. If that is
  possible, it was not made, and now never will be, because it is conditional on the number before; else it was.
- *A writer that is gone* is ended: its version becomes one that no operation is conditional on, so that no further
  operation of it can count. A writer that was wrongly taken for gone finds that out, and begins again under another
  number.
- *Timestamps* come from the clock, but always rise: an owner begins above the highest that any owner before it used. It
  says so in its own row before it owns anything, by an operation that does nothing: it may never make another.
- Lightweight transactions and plain writes never touch the same table.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from everbell.clock import Clock
from everbell.errors import StoreError, StoreUnavailable
from everbell.stores.cassandra.rows import RowChange, chunks_of, make, read_chunks
from everbell.stores.cassandra.session import CassandraSession

_RETRY_S = 0.2
_TRIES = 20
_CLOSE_S = 2.0

_BEGIN = (
    "INSERT INTO writers (store, writer, op, made, applied, chunks, clock, version) VALUES (?, ?, 0, 0, 0, 0, 0, 0) "
    "IF NOT EXISTS"
)
_SEE = "SELECT op, made, applied, chunks, clock, version, revoked FROM writers WHERE store = ? AND writer = ?"
_COMMIT = (
    "UPDATE writers SET op = ?, made = ?, applied = ?, chunks = ?, clock = ? WHERE store = ? AND writer = ? "
    "IF op = ? AND version = ?"
)
_GIVE_UP = "UPDATE writers SET op = ? WHERE store = ? AND writer = ? IF op = ?"
_END_WRITER = "UPDATE writers SET version = ? WHERE store = ? AND writer = ? IF op = ? AND version = ?"
_SETTLE = "UPDATE writers SET applied = ? WHERE store = ? AND writer = ? IF op = ?"
_REVOKE = "UPDATE writers SET revoked = revoked + ?, version = ? WHERE store = ? AND writer = ? IF version = ?"
_ALLOW = "UPDATE writers SET revoked = revoked - ?, version = ? WHERE store = ? AND writer = ? IF version = ?"
_WRITE = "INSERT INTO journal (store, writer, op, chunk, body) VALUES (?, ?, ?, ?, ?)"
_READ = "SELECT chunk, body FROM journal WHERE store = ? AND writer = ? AND op = ?"
_DROP = "DELETE FROM journal WHERE store = ? AND writer = ? AND op = ?"

ENDED = -1  # The version of a writer that is ended.

_log = logging.getLogger("everbell.stores.cassandra.store")


class Revoked(Exception):
    """Other nodes took partitions from this writer; nothing was made."""

    def __init__(self, partitions: Collection[int]) -> None:
        super().__init__(f"partitions {sorted(partitions)} were taken")
        self.partitions = partitions


class WriterEnded(Exception):
    """Nothing was made, nor can be under this writer's number: another node ended it, or is taking its partitions."""


@dataclass(frozen=True)
class Writer:
    """The row of a writer, with the numbers of its last operations."""

    op: int
    made: int
    applied: int
    chunks: int
    clock: int
    version: int
    revoked: frozenset[int]

    @property
    def is_ended(self) -> bool:
        return self.version == ENDED


Then = Callable[[], None]  # Called when an operation is known to be made.


class Journal:
    """The operations of one process, one at a time."""

    def __init__(self, link: CassandraSession, clock: Clock, writer: int) -> None:
        self._link = link
        self._clock = clock
        self.writer = writer
        self._has_begun = False
        self._op = 0  # The number in the writer's row.
        self._number = 0  # The last number that was used.
        self._made = 0
        self._version = 0
        self.revoked: frozenset[int] = frozenset()
        self._last_us = 0
        self._heard_us = 0  # The latest timestamp of the writers from which this one took partitions.
        self._kept_us = 0  # The timestamp in the writer's row.
        # The row changes of the last operation and its timestamp, if they could not be made yet.
        self._left: tuple[Sequence[RowChange], int] | None = None
        # An operation with an unknown outcome, because its caller was cancelled.
        self._open: tuple[int, Sequence[RowChange], int, Then] | None = None
        self._tidying: set[asyncio.Task[None]] = set()

    def tick(self) -> int:
        self._last_us = max(self._clock.now() * 1_000, self._last_us + 1)
        return self._last_us

    def begin_again(self, writer: int) -> None:
        """Go on as a new writer. No operation may be open."""
        self.writer, self._has_begun = writer, False
        self._op = self._number = self._made = self._version = self._kept_us = 0
        self.revoked = frozenset()

    async def run(self, changes: Sequence[RowChange], levels: Sequence[str], then: Then) -> None:
        """Make an operation. After `StoreUnavailable`, `Revoked` and `WriterEnded` it was not made."""
        await self._begin()
        await self.catch_up()
        self._number += 1
        number, clock = self._number, self.tick()
        chunks = chunks_of(changes)
        store = self._link.address.store
        try:
            for level in levels:
                writes = [
                    self._link.write([(_WRITE, (store, self.writer, number, place, chunk))], clock, level)
                    for place, chunk in enumerate(chunks)
                ]
                await asyncio.gather(*writes)
            self._open = number, changes, clock, then
            await self._commit(number, clock, len(chunks))
        except (StoreUnavailable, Revoked, WriterEnded):
            self._open = None
            self._tidy(number, clock)
            raise
        before = self._made
        self._note()
        try:
            await self.catch_up()
        except StoreUnavailable as away:
            _log.warning("an operation is stored, and its rows will be written later: %s", away)
        self._tidy(before, clock)

    def _note(self) -> None:
        assert self._open is not None
        self._made, changes, self._kept_us, then = self._open
        self._left, self._open = (changes, self._kept_us), None
        then()

    async def catch_up(self) -> None:
        """Find out the outcome of an open operation, and make the row changes that the last operation left."""
        if self._open is not None:
            if await self._find_out(self._open[0]):
                self._note()
            self._open = None
        if self._left is not None:
            await make(self._link, *self._left, self._link.floor)
            self._left = None

    async def _commit(self, number: int, clock: int, chunks: int) -> None:
        store = self._link.address.store
        while True:
            values = (number, number, self._made, chunks, clock, store, self.writer, self._op, self._version)
            try:
                is_made, _ = await self._link.decide([(_COMMIT, values)])
            except StoreUnavailable:
                if not await self._find_out(number):
                    raise
                return
            if is_made:
                self._op = number
                return
            await self._look()

    async def _look(self) -> None:
        """Another node has changed the row of this writer: raise `Revoked` for the partitions that it took."""
        seen = await self.see(self.writer)
        if seen.is_ended:
            raise WriterEnded
        if seen.op != self._op:
            raise StoreUnavailable("another process writes under the number of this one: start this process again")
        self._version = seen.version
        new, self.revoked = seen.revoked - self.revoked, seen.revoked
        if new:
            raise Revoked(new)

    async def _find_out(self, number: int) -> bool:
        """Whether the operation was made; if not, it never will be. Retries until the servers answer."""
        store = self._link.address.store
        while True:
            try:
                is_given_up, _ = await self._link.decide([(_GIVE_UP, (number, store, self.writer, self._op))])
                if is_given_up:
                    self._op = number
                    return False
                seen = await self.see(self.writer)
                if seen.op == number:
                    self._op = number
                    return seen.made == number
            except StoreUnavailable:
                pass
            await asyncio.sleep(_RETRY_S)

    async def see(self, writer: int) -> Writer:
        """The row of a writer. A writer begins with a row, so one without a row was ended long ago."""
        rows = await self._link.see(_SEE, self._link.address.store, writer)
        if not rows:
            return Writer(0, 0, 0, 0, 0, ENDED, frozenset())
        op, made, applied, chunks, clock, version, revoked = rows[0]
        return Writer(op, made, applied, chunks, clock, version, frozenset(revoked or ()))

    async def _begin(self) -> None:
        if not self._has_begun:
            await self._link.decide([(_BEGIN, (self._link.address.store, self.writer))])
            self._has_begun = True

    async def allow(self, partitions: Collection[int]) -> None:
        """Remove partitions from the list of those revoked from this writer, because it owns them again."""
        await self._begin()
        for _ in range(_TRIES):
            again = self.revoked.intersection(partitions)
            if not again:
                return
            version = self._version + 1
            values = (set(again), version, self._link.address.store, self.writer, self._version)
            is_made, _ = await self._link.decide([(_ALLOW, values)])
            if is_made:
                self._version, self.revoked = version, self.revoked - again
                return
            seen = await self.see(self.writer)
            if seen.is_ended:
                raise WriterEnded
            self._version, self.revoked = seen.version, seen.revoked
        raise StoreUnavailable("other nodes keep taking partitions at the same time: try again")

    async def revoke(self, writer: int, partitions: Collection[int]) -> None:
        """Take partitions from another writer: it can make no more operations there, and its last one is made."""
        for _ in range(_TRIES):
            seen = await self.see(writer)
            if not seen.is_ended and not seen.revoked.issuperset(partitions):
                values = (set(partitions), seen.version + 1, self._link.address.store, writer, seen.version)
                is_made, _ = await self._link.decide([(_REVOKE, values)])
                if not is_made:
                    continue
                seen = await self.see(writer)
            self._heard_us = max(self._heard_us, seen.clock)
            self._last_us = max(self._last_us, seen.clock)
            if seen.made == seen.applied or await self._repeat(writer, seen):
                return
        raise StoreUnavailable("the last operation of another process cannot be read: try again")

    async def keep_time(self) -> None:
        """Store the latest timestamp of other writers in this writer's row, for the node that takes partitions next."""
        for _ in range(_TRIES):
            if self._heard_us <= self._kept_us:
                return
            try:
                await self.run([], (self._link.floor,), lambda: None)
            except Revoked:
                continue  # `revoked` has them now, and nothing here depends on them.
        raise StoreUnavailable("other nodes keep taking partitions at the same time: try again")

    async def end(self, writer: int) -> bool:
        """End a writer: it can make no more operations, its last one is made, and its journal is empty. False if that
        is not possible now."""
        store = self._link.address.store
        seen = await self.see(writer)
        if not seen.is_ended:
            values = (ENDED, store, writer, seen.op, seen.version)
            is_made, _ = await self._link.decide([(_END_WRITER, values)])
            if not is_made:
                return False
        self._last_us = max(self._last_us, seen.clock)
        if seen.made != seen.applied:
            if not await self._repeat(writer, seen):
                return False
            is_made, _ = await self._link.decide([(_SETTLE, (seen.made, store, writer, seen.op))])
            if not is_made:
                return False
        for number in {seen.made, seen.op, seen.op + 1} - {0}:
            await self._drop((store, writer, number), self.tick())
        return True

    async def _repeat(self, writer: int, seen: Writer) -> bool:
        """Repeat the last operation of another writer; False if that writer has just made its next one."""
        rows = await self._link.ask(_READ, self._link.address.store, writer, seen.made)
        if len(rows) < seen.chunks:
            return False
        await make(
            self._link, read_chunks([body for _, body in sorted(rows)][: seen.chunks]), seen.clock, self._link.floor
        )
        return True

    def _tidy(self, number: int, clock: int) -> None:
        """Delete the journal of an operation. The operation after it has stored that its rows are written."""
        if number:
            values = (self._link.address.store, self.writer, number)
            task = asyncio.get_running_loop().create_task(self._drop(values, clock))
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)

    async def _drop(self, values: tuple[object, ...], clock: int) -> None:
        try:
            await self._link.write([(_DROP, values)], clock, "LOCAL_ONE")
        except StoreUnavailable:
            return  # The rows stay, which costs only a little space.

    async def close(self) -> None:
        """Leave no operation to repeat, and an empty journal, if the servers answer."""
        if self._tidying:
            await asyncio.gather(*self._tidying, return_exceptions=True)
        last, self._made = self._made, 0
        if not last or self._left is not None or self._open is not None:
            return
        store = self._link.address.store
        try:
            settled = (_SETTLE, (last, store, self.writer, self._op))
            is_made, _ = await self._link.decide([settled], timeout_s=_CLOSE_S)
        except StoreError:
            return  # The next owner repeats it.
        if is_made:
            await self._drop((store, self.writer, last), self.tick())


def fence_of(rows: Sequence[tuple[int, int | None, int | None]]) -> Mapping[int, tuple[int, int | None]]:
    """Epoch and writer by partition."""
    return {partition: (epoch or 0, writer) for partition, epoch, writer in rows}
