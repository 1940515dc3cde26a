"""The fence: taking partitions, and knowing which partitions this process holds.

The rules that keep old owners out are in `journal`. The rows of all partitions of a store lie together in Cassandra, so
one lightweight transaction takes many. A node revokes partitions before it takes them. If it ends in between, the old
owner has to take them once more, and no partition has two owners. The old owner does so as another writer, so the row
of the fence changes: a node that revoked them and is only slow then fails to take them.
"""

from __future__ import annotations

from collections.abc import Mapping

from everbell.errors import StoreUnavailable
from everbell.stores.cassandra.journal import Journal, WriterEnded, fence_of
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.fence_checks import raise_if_fenced

_TRIES = 20
_TAKEN_AT_ONCE = 512

FENCE = "SELECT partition, epoch, writer FROM fence WHERE store = ?"
_TAKE = "UPDATE fence SET epoch = ?, writer = ? WHERE store = ? AND partition = ? IF epoch = ? AND writer = ?"
_BLOCKS = "SELECT blocks FROM stores WHERE store = ?"
_NEXT_BLOCK = "UPDATE stores SET blocks = ? WHERE store = ? IF blocks = ?"


class Fence:
    """The partitions that this process holds, with their epochs."""

    def __init__(self, link: CassandraSession, journal: Journal) -> None:
        self._link = link
        self._journal = journal
        self._held: dict[int, int] = {}
        # By partition: epochs and writers that this process perhaps put in force without learning it. Several, because
        # this process may become another writer in between.
        self._untold: dict[int, set[tuple[int, int | None]]] = {}

    @property
    def held(self) -> Mapping[int, int]:
        # The journal reports a revoked partition once, perhaps to an operation on other partitions. So its whole list
        # counts here.
        revoked = self._journal.revoked
        return {p: epoch for p, epoch in self._held.items() if p not in revoked} if revoked else self._held

    def forget(self) -> None:
        self._held.clear()

    async def take(self, epochs: Mapping[int, int]) -> int:
        """Put higher epochs in force; returns the number of a block of sequences. Raises `Fenced` and `WriterEnded`.

        After `StoreUnavailable` the caller can repeat it, even if it was done.
        """
        await self._take(epochs, again=False)
        block = await self.next_block()
        for partition in epochs:
            self._untold.pop(partition, None)
        return block

    async def check(self, claimed: Mapping[int, int]) -> bool:
        """Make sure that this process holds partitions by the claimed epochs. Raises `Fenced` and `WriterEnded`.

        An owner that was restarted under its epoch takes its partitions again; then this returns True.
        """
        held = self.held
        missing = {p: epoch for p, epoch in claimed.items() if held.get(p) != epoch}
        if missing:
            await self._take(missing, again=True)
        return bool(missing)

    async def _take(self, wanted: Mapping[int, int], *, again: bool) -> None:
        store, me = self._link.address.store, self._journal.writer
        # While it is being taken, a partition is not held, not even by the older epoch.
        for partition in wanted:
            self._held.pop(partition, None)
        for tried in range(_TRIES):
            now = fence_of(await self._link.see(FENCE, store))
            self._check(wanted, now, again=again)
            mine = [p for p, epoch in wanted.items() if now.get(p) == (epoch, me)]
            if (again and mine and not tried) or self._journal.revoked.intersection(mine):
                raise WriterEnded
            await self._revoke({p: now[p][1] for p in wanted if p in now})
            await self._journal.allow(wanted)
            await self._journal.keep_time()
            if not again:
                for partition, epoch in wanted.items():
                    self._untold.setdefault(partition, set()).add((epoch, me))
            if await self._write(wanted, now):
                self._held.update(wanted)
                return
        raise StoreUnavailable("other nodes keep taking the same partitions at the same time: try again")

    def _check(self, wanted: Mapping[int, int], now: Mapping[int, tuple[int, int | None]], *, again: bool) -> None:
        """Raise `Fenced` unless each epoch is higher than the one in force, or is in force by this process's doing."""
        late = []
        for partition, epoch in wanted.items():
            seen = now.get(partition, (0, None))
            is_ours = seen[0] == epoch and (again or seen in self._untold.get(partition, ()))
            if not is_ours and (again or seen[0] >= epoch):
                late.append(partition)
        raise_if_fenced(sorted(late))

    async def _revoke(self, writers: Mapping[int, int | None]) -> None:
        by_writer: dict[int, set[int]] = {}
        for partition, writer in writers.items():
            if writer is not None and writer != self._journal.writer:
                by_writer.setdefault(writer, set()).add(partition)
        for writer, partitions in by_writer.items():
            await self._journal.revoke(writer, partitions)

    async def _write(self, wanted: Mapping[int, int], now: Mapping[int, tuple[int, int | None]]) -> bool:
        store, me = self._link.address.store, self._journal.writer
        statements = []
        for partition, epoch in wanted.items():
            seen = now.get(partition)
            if seen == (epoch, me):
                continue
            before = (None, None) if seen is None else seen
            statements.append((_TAKE, (epoch, me, store, partition, *before)))
        for start in range(0, len(statements), _TAKEN_AT_ONCE):
            try:
                is_made, _ = await self._link.decide(statements[start : start + _TAKEN_AT_ONCE])
            except StoreUnavailable:
                return False  # It may have been made: the caller reads the fence again.
            if not is_made:
                return False
        return True

    async def next_block(self) -> int:
        """The number of a block of sequences for this process alone."""
        store = self._link.address.store
        for _ in range(_TRIES):
            rows = await self._link.see(_BLOCKS, store)
            block = rows[0][0] + 1 if rows else 0
            # If the answer is lost, the block may be lost, too. There are enough blocks.
            is_made, _ = await self._link.decide([(_NEXT_BLOCK, (block, store, block - 1))])
            if is_made:
                return int(block)
        raise StoreUnavailable("other nodes keep taking sequences at the same time: try again")
