"""The log in PostgreSQL: tables in a schema, LISTEN/NOTIFY plus polling, leases by the server's clock.

- An append takes the next index from a row that it locks until it commits: entries become visible in order, without
  gaps. It is a single statement, so no lock is held by a node that freezes.
- Each append notifies its index, in a channel named like the schema. A separate connection listens. It asks for the
  last index after each reconnect and regularly in between, because a dead connection may go unnoticed.
- A lease is its end by the server's clock. A waiter is notified of a release; otherwise it asks the server how much
  time is left, waits that long, and asks again. (If the server's clock is set forward, leases end too soon; the
  stores' fences make that safe.)
- Renewals have their own connection, so that they wait neither behind a large snapshot nor behind a query on a dead
  connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from everbell.errors import Trimmed
from everbell.logs.leases import until_ended
from everbell.logs.port import LogEntry, Snapshot, check_size
from everbell.logs.postgres_connection import LogConnection, connect
from everbell.logs.postgres_failures import append_error
from everbell.logs.postgres_tables import prepare
from everbell.logs.signal import Signal
from everbell.stores.postgres.address import PostgresAddress
from everbell.stores.postgres.failures import PostgresFailure

_LOOK_S = 5.0  # How often to poll in spite of notifications.
_RETRY_S = 0.5
_RENEW_MIN_S = 1.0

_APPEND = """
    WITH next AS (UPDATE log_head SET last_index = last_index + 1 RETURNING last_index),
    added AS (INSERT INTO log_entries SELECT last_index, $1 FROM next RETURNING index)
    SELECT index, pg_notify($2, index::text) FROM added
"""
_READ = """
    SELECT trimmed, index, data
    FROM log_head LEFT JOIN log_entries ON index > $1 AND index <= $1 + $2
    ORDER BY index
"""
_SAVE = """
    WITH saved AS (
        INSERT INTO log_snapshot VALUES (true, $1, $2)
        ON CONFLICT (one) DO UPDATE SET index = excluded.index, data = excluded.data
        WHERE log_snapshot.index < excluded.index
        RETURNING index
    ),
    head AS (UPDATE log_head SET trimmed = greatest(trimmed, $3) WHERE EXISTS (SELECT FROM saved)),
    ended AS (DELETE FROM log_leases WHERE ends_at < clock_timestamp())
    DELETE FROM log_entries WHERE index <= $3 AND EXISTS (SELECT FROM saved)
"""
_LOAD = "SELECT index, data FROM log_snapshot"
_LAST = "SELECT last_index FROM log_head"
_RENEW = """
    INSERT INTO log_leases VALUES ($1, clock_timestamp() + $2 * interval '1 millisecond')
    ON CONFLICT (member) DO UPDATE SET ends_at = excluded.ends_at
"""
_RELEASE = """
    WITH ended AS (DELETE FROM log_leases WHERE member = $1 RETURNING member)
    SELECT pg_notify($2, '') FROM ended
"""
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8 AS now"
_LEFT = "SELECT extract(epoch FROM ends_at - clock_timestamp())::float8 AS left_s FROM log_leases WHERE member = $1"


class PostgresLog:
    """A handle of a log in PostgreSQL; see the port."""

    def __init__(self, address: PostgresAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._work = LogConnection(address, timeout_s)
        self._renewals = LogConnection(address, timeout_s)
        self._news = Signal()
        self._told = 0  # The highest index that is known to be in the log.
        self._listener: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Create the tables if they are missing, and begin to listen. Raises `LogUnusable` or `LogUnavailable`."""
        await prepare(self._address, self._timeout_s)
        self._listener = asyncio.create_task(self._keep_listening())

    async def append(self, data: bytes) -> int:
        check_size(data)
        [row] = await self._work.ask(_APPEND, data, self._address.schema, failure=append_error)
        index: int = row["index"]
        return index

    async def read(self, after: int, limit: int) -> Sequence[LogEntry]:
        rows = await self._work.ask(_READ, after, limit)
        if rows[0]["trimmed"] > after:
            raise Trimmed.at(after)
        return [LogEntry(row["index"], row["data"]) for row in rows if row["index"] is not None]

    async def wait(self, after: int, timeout_s: float) -> None:
        end_s = asyncio.get_running_loop().time() + timeout_s
        while self._told <= after and (left_s := end_s - asyncio.get_running_loop().time()) > 0:
            await self._news.wait(self._news.ticket(), left_s)

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        await self._work.ask(_SAVE, snapshot.index, snapshot.data, snapshot.index - keep)

    async def load(self) -> Snapshot | None:
        rows = await self._work.ask(_LOAD)
        return Snapshot(rows[0]["index"], rows[0]["data"]) if rows else None

    async def renew(self, member: str, ttl_ms: int) -> None:
        # The connection may be dead, so the time-out has to leave time for another try within the lease.
        within_s = min(max(ttl_ms / 3_000, _RENEW_MIN_S), self._timeout_s)
        await self._renewals.ask(_RENEW, member, ttl_ms, within_s=within_s)

    async def release(self, member: str) -> None:
        await self._work.ask(_RELEASE, member, self._address.schema)

    async def lives(self, member: str) -> bool:
        return await self._left_s(member) > 0

    async def now(self) -> int | None:
        [row] = await self._work.ask(_NOW)
        return int(row["now"])

    async def ended(self, member: str) -> None:
        await until_ended(lambda: self._left_s(member), self._news, _LOOK_S)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
        await self._work.close()
        await self._renewals.close()

    async def _left_s(self, member: str) -> float:
        rows = await self._work.ask(_LEFT, member)
        return rows[0]["left_s"] if rows else 0.0

    async def _keep_listening(self) -> None:
        while True:
            with suppress(*PostgresFailure):
                await self._listen()
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        """Listen until the connection is lost."""
        connection = await connect(self._address, self._timeout_s)
        lost = Signal()
        try:
            connection.add_termination_listener(lambda _: lost.ring())
            await connection.add_listener(self._address.schema, self._hear)
            while not connection.is_closed():
                self._tell(await connection.fetchval(_LAST, timeout=self._timeout_s))
                await lost.wait(lost.ticket(), _LOOK_S)
        finally:
            connection.terminate()

    def _hear(self, _connection: Any, _pid: int, _channel: str, text: str) -> None:
        self._tell(int(text) if text.isdecimal() else self._told)

    def _tell(self, last_index: int) -> None:
        self._told = max(self._told, last_index)
        self._news.ring()
