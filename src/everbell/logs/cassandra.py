"""The log in Cassandra: entries by lightweight transactions, leases by the servers' clocks, and polling.

- An append inserts its entry at the first free index, by one lightweight transaction on a row of its own. The writer
  has seen the previous entry, so there are no gaps. A nonce tells the writer after a lost answer whether the entry
  at an index is its own.
- Cassandra has no notifications, so waiters poll the next index.
- A lease is a row with the time of its renewal and its length. A server's clock gives that time and decides how much
  is left. (If that clock is wrong, leases end too soon or too late; the stores' fences make that safe.) The driver's
  timestamps, which always increase, decide which write is the last.
- A snapshot is written under its index and counts once the head names it. The head also records trimming, before
  entries are removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

from everbell.entropy import SystemEntropy
from everbell.errors import LogUnavailable, LogUncertain, LogUnusable, StoreError, StoreUnavailable, Trimmed
from everbell.logs.leases import until_ended
from everbell.logs.port import LogEntry, Snapshot, check_size
from everbell.logs.signal import Signal
from everbell.stores.cassandra.address import CassandraAddress
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.tables import with_tables

T = TypeVar("T")

FORMAT = 1
"""The format that this version writes, and the newest that it reads."""

_LOOK_S = 0.1
_RETRY_S = 0.5
_TRIES = 50
_READ_AT_ONCE = 32
_CHUNK_BYTES = 512 << 10
_FORGET_S = 600  # Cassandra removes the row of a lease this long after its end.

_BEGIN = "INSERT INTO log_heads (log, format, trimmed, snapshot, chunks) VALUES (?, ?, 0, 0, 0) IF NOT EXISTS"
_HEAD = "SELECT format, trimmed, snapshot, chunks FROM log_heads WHERE log = ?"
_PUT = "INSERT INTO log_entries (log, number, nonce, data) VALUES (?, ?, ?, ?) IF NOT EXISTS"
_ENTRY = "SELECT number, data FROM log_entries WHERE log = ? AND number = ?"
_NONCE = "SELECT nonce FROM log_entries WHERE log = ? AND number = ?"
_TRIM = "DELETE FROM log_entries WHERE log = ? AND number = ? IF EXISTS"
_SAVE = "UPDATE log_heads SET snapshot = ?, chunks = ?, trimmed = ? WHERE log = ? IF snapshot = ? AND trimmed = ?"
_PUT_CHUNK = "INSERT INTO log_snapshots (log, number, chunk, data) VALUES (?, ?, ?, ?)"
_CHUNKS = "SELECT chunk, data FROM log_snapshots WHERE log = ? AND number = ?"
_DROP_CHUNKS = "DELETE FROM log_snapshots WHERE log = ? AND number = ?"
_RENEW = "INSERT INTO log_leases (log, member, renewed_at, ttl_ms) VALUES (?, ?, toUnixTimestamp(now()), ?) USING TTL ?"
_RELEASE = "DELETE FROM log_leases WHERE log = ? AND member = ?"
_LEFT = (
    "SELECT ttl_ms, renewed_at, toUnixTimestamp(now()), writetime(ttl_ms) FROM log_leases WHERE log = ? AND member = ?"
)
_NOW = "SELECT toUnixTimestamp(now()) FROM system.local"


class CassandraLog:
    """A handle of a log in Cassandra; see the port."""

    def __init__(self, address: CassandraAddress, timeout_s: float) -> None:
        self._log = address.store
        self._link = CassandraSession(address)
        self._renewals = CassandraSession(address)
        self._address = address
        self._timeout_s = timeout_s
        self._entropy = SystemEntropy()
        self._last = 0  # The highest index that is known to be in the log.
        self._news = Signal()
        self._appending = asyncio.Lock()

    async def open(self) -> None:
        """Create the tables if they are missing. Raises `LogUnusable` or `LogUnavailable`."""
        try:
            head = await with_tables(
                self._head, self._address, "everbell.logs", f"cassandra_{FORMAT}.cql", self._entropy
            )
            if head is None:
                await self._link.decide([(_BEGIN, (self._log, FORMAT))])
                head = await self._head()
            await self._renewals.prepare(_RENEW)  # So that the first renewal need not wait for a connection.
        except StoreError as error:
            raise _log_error(error) from error
        if head is not None and head[0] > FORMAT:
            raise LogUnusable(
                f"{self._address.name} has a log of a newer Everbell (format {head[0]}, this one reads up to "
                f"{FORMAT}): install a newer version"
            )

    async def append(self, data: bytes) -> int:
        check_size(data)
        async with self._appending:
            nonce = self._entropy.nonce()
            await self._find_end()
            for _ in range(_TRIES):
                index = self._last + 1
                if await self._put(index, nonce, data):
                    self._tell(index)
                    return index
                self._last = index
        raise LogUnavailable("others keep appending to the log at the same time: try again")

    async def _put(self, index: int, nonce: bytes, data: bytes) -> bool:
        """Put the entry at this index; False if another one is there. Raises `LogUncertain`."""
        try:
            is_made, _ = await self._link.decide([(_PUT, (self._log, index, nonce, data))], timeout_s=self._timeout_s)
            if is_made:
                return True
            rows = await self._link.see(_NONCE, self._log, index, timeout_s=self._timeout_s)
        except StoreUnavailable as away:
            raise LogUncertain(f"{away}; the command may be in the log") from away
        except StoreError as error:
            raise _log_error(error) from error
        return bool(rows) and rows[0][0] == nonce

    async def _find_end(self) -> None:
        """Find the end of the log, at least nearly: an append finds out if the log is longer."""
        while entries := await self._entries(self._last, _READ_AT_ONCE):
            self._last = entries[-1].index
        head = await self._asked(self._head())
        if head is not None and head[1] > self._last:
            self._last = head[1]
            await self._find_end()

    async def read(self, after: int, limit: int) -> Sequence[LogEntry]:
        entries: list[LogEntry] = []
        while len(entries) < limit:
            wanted = min(limit - len(entries), _READ_AT_ONCE)
            more = await self._entries(after + len(entries), wanted)
            entries += more
            if len(more) < wanted:
                break
        if not entries:
            head = await self._asked(self._head())
            if head is not None and head[1] > after:
                raise Trimmed.at(after)
        if entries:
            self._tell(entries[-1].index)
        return entries

    async def _entries(self, after: int, limit: int) -> list[LogEntry]:
        """The entries at the next places. The first place is read alone, because it is usually empty."""
        first = await self._asked(self._link.ask(_ENTRY, self._log, after + 1, timeout_s=self._timeout_s))
        if not first or limit == 1:
            return [LogEntry(*row) for row in first]
        places = [(self._log, after + number) for number in range(2, limit + 1)]
        found = await self._asked(self._link.ask_all(_ENTRY, places))
        return [LogEntry(*rows[0]) for rows in takewhile(bool, [first, *found])]

    async def wait(self, after: int, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while self._last <= after and (left_s := end_s - loop.time()) > 0:
            ticket = self._news.ticket()
            try:
                if await self._entries(after, 1):
                    self._tell(after + 1)
                    return
            except LogUnavailable:
                await asyncio.sleep(min(_RETRY_S, left_s))
                continue
            await self._news.wait(ticket, min(_LOOK_S, left_s))

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        head = await self._asked(self._head())
        assert head is not None
        _, trimmed, saved, _ = head
        if saved >= snapshot.index:
            return None
        starts = range(0, max(len(snapshot.data), 1), _CHUNK_BYTES)
        chunks = [snapshot.data[start : start + _CHUNK_BYTES] for start in starts]
        for number, chunk in enumerate(chunks):
            await self._asked(self._link.ask(_PUT_CHUNK, self._log, snapshot.index, number, chunk))
        until = max(trimmed, snapshot.index - keep)
        values = (snapshot.index, len(chunks), until, self._log, saved, trimmed)
        is_made, _ = await self._asked(self._link.decide([(_SAVE, values)]))
        if not is_made:
            return await self.save(snapshot, keep)  # Another node saved a snapshot, which may be older.
        for index in range(trimmed + 1, until + 1):
            await self._asked(self._link.decide([(_TRIM, (self._log, index))]))
        if saved:
            await self._asked(self._link.ask(_DROP_CHUNKS, self._log, saved))
        return None

    async def load(self) -> Snapshot | None:
        for _ in range(_TRIES):
            head = await self._asked(self._head())
            if head is None or not head[2]:
                return None
            _, _, index, count = head
            rows = sorted(await self._asked(self._link.ask(_CHUNKS, self._log, index)))
            if len(rows) >= count:
                return Snapshot(index, b"".join(data for _, data in rows[:count]))
        raise LogUnavailable("the snapshot of the log cannot be read: try again")

    async def renew(self, member: str, ttl_ms: int) -> None:
        forget_s = -(-ttl_ms // 1_000) + _FORGET_S
        await self._asked(self._renewals.ask(_RENEW, self._log, member, ttl_ms, forget_s, timeout_s=self._timeout_s))

    async def release(self, member: str) -> None:
        rows = await self._asked(self._link.ask(_LEFT, self._log, member, timeout_s=self._timeout_s))
        if rows:  # The timestamp follows that of the renewal, whatever this machine's clock says.
            values = (self._log, member)
            await self._asked(self._link.write([(_RELEASE, values)], rows[0][3] + 1, self._link.floor))
        self._news.ring()

    async def lives(self, member: str) -> bool:
        return await self._left_s(member) > 0

    async def now(self) -> int | None:
        [(now,)] = await self._asked(self._link.ask(_NOW, level="ONE", timeout_s=self._timeout_s))
        return int(now)

    async def ended(self, member: str) -> None:
        await until_ended(lambda: self._left_s(member), self._news, 2 * _LOOK_S)

    async def close(self) -> None:
        await self._link.close()
        await self._renewals.close()

    async def _left_s(self, member: str) -> float:
        rows = await self._asked(self._link.ask(_LEFT, self._log, member, timeout_s=self._timeout_s))
        if not rows:
            return 0.0
        ttl_ms, renewed_at, now, _ = rows[0]
        return float(ttl_ms - (now - renewed_at)) / 1_000

    async def _head(self) -> tuple[Any, ...] | None:
        rows = await self._link.see(_HEAD, self._log, timeout_s=self._timeout_s)
        return rows[0] if rows else None

    async def _asked(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except StoreError as error:
            raise _log_error(error) from error

    def _tell(self, index: int) -> None:
        if index > self._last:
            self._last = index
        self._news.ring()


def _log_error(error: StoreError) -> LogUnavailable | LogUnusable:
    return LogUnavailable(str(error)) if isinstance(error, StoreUnavailable) else LogUnusable(str(error))
