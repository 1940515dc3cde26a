"""The time during which a collector has the lock on an outbox: look for rows, hand them over, remove them.

- A row is removed after the engine has answered that it is durable. A crash in between brings it again, to no effect
  (`hand_over`).
- For an id or a key, the numbers of rows are in the order of commits: an application's transaction locks the names of
  its events, then takes a number, and keeps the locks until it has committed. `unseen` finds numbers that appear late.
- Transactions notify the collector, but only while there are few of them: PostgreSQL makes transactions that notify
  commit one after the other. When many rows come, the collector announces that it looks by itself, and does so every
  few milliseconds. The next poll finds the rows of transactions that missed the announcement.
- The rows in memory are bounded by two batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from everbell.clock import Clock
from everbell.core.collector_report import CollectorReport
from everbell.outbox import statements
from everbell.outbox.connection import OutboxConnection
from everbell.outbox.hand_over import HandedOver, HandOver
from everbell.outbox.holds import Holds
from everbell.outbox.row import OutboxRow
from everbell.outbox.settings import OutboxAddress
from everbell.outbox.unseen import Unseen

_log = logging.getLogger("everbell.outbox")

ROWS_MAX = 2_000
BYTES_MAX = 8 * 1024 * 1024
"""The limits of a batch; one row may be larger."""
FINISH_S = 1.0
"""How long a stop waits for the engine: short, because the engine may be waiting for this very node."""
POLL_S = 0.5
BUSY_ROWS = 10
"""This many rows within a tenth of a second keep the collector busy for a while."""
_BUSY_WINDOW_S = 0.1
_BUSY_S = 0.25
_BUSY_POLL_S = 0.004
_LINGER_S = 0.05
_CLEAN_UP_S = 600.0
_CLEANED_AT_ONCE = 10_000
_REFUSALS_LOGGED = 3


class CollectorProgress:
    """Counts since the last report, and the backlog."""

    def __init__(self) -> None:
        self._counts = (0, 0, 0, 0)
        self.waiting = 0
        self.oldest_ms = 0

    def add(self, handed: HandedOver) -> None:
        more = (handed.events, handed.changes, handed.late, len(handed.refused))
        self._counts = tuple(map(sum, zip(self._counts, more, strict=True)))  # type: ignore[assignment]  # four again

    def report(self, trouble: str | None, *, is_collecting: bool) -> CollectorReport:
        """The counts since the last call, and the present health."""
        counts, self._counts = self._counts, (0, 0, 0, 0)
        return CollectorReport(*counts, is_collecting, self.waiting, self.oldest_ms, trouble)


class Collecting:
    """Collects until something fails or the collector is stopped."""

    def __init__(
        self,
        address: OutboxAddress,
        connection: OutboxConnection,
        take: HandOver,
        clock: Clock,
        progress: CollectorProgress,
        stopping: asyncio.Event,
    ) -> None:
        self._default_tenant = address.default_tenant
        self._name = address.name
        self._connection = connection
        self._take = take
        self._clock = clock
        self._progress = progress
        self._stopping = stopping
        self.holds = Holds(address.name)
        self._unseen = Unseen()
        self._storing: asyncio.Task[HandedOver] | None = None
        self._under_way: set[int] = set()
        """The numbers of the rows that the engine is storing."""
        self._now_s = asyncio.get_running_loop().time
        self._is_quiet: bool | None = None
        """Whether transactions do not notify."""
        self._window_until_s = 0.0
        self._window_rows = 0
        self._busy_until_s = 0.0
        self._linger_until_s = 0.0
        self._clean_up_at_s = 0.0

    async def run(self) -> None:
        """Raises one of `PostgresFailure`."""
        try:
            while not self._stopping.is_set():
                await self._step()
            if self._storing is not None:
                await asyncio.wait({self._storing}, timeout=FINISH_S)
                if self._storing.done():
                    await self._settle()
            await self._announce(is_quiet=False)
        finally:
            if self._storing is not None:
                self._storing.cancel()
                with suppress(asyncio.CancelledError):
                    await self._storing

    async def _step(self) -> None:
        await self._keep_up()
        self._connection.woken.clear()
        rows = await self._look()
        if self._storing is not None:
            await self._settle()
        if rows:
            self._hand_over(rows)
            # Only a backlog is worth looking for more rows during the write. Few rows are sooner through on their own.
            if len(rows) < ROWS_MAX // 2:
                await self._settle()
        else:
            self.holds.forget_ended()
            await self._rest()

    async def _look(self) -> list[OutboxRow]:
        ranges = self._unseen.ranges
        found = await self._connection.fetch(
            statements.LOOK,
            [each.low for each in ranges],
            [each.high for each in ranges],
            self._default_tenant,
            self.holds.tenants,
            ROWS_MAX,
            BYTES_MAX,
        )
        running, last = found[0]["running"], found[0]["last"]
        rows = [OutboxRow(*tuple(record)[2:]) for record in found if record["seq"] is not None]
        self._unseen.see([row.seq for row in rows], running)
        self._progress.waiting = len(rows) + (max(last - rows[-1].seq, 0) if rows else 0)
        self._progress.oldest_ms = max(self._clock.now() - rows[0].asked_at, 0) if rows else 0
        self._count(len(rows))
        # A second look at rows after a pause may find some that the engine is storing.
        return [row for row in rows if row.seq not in self._under_way]

    def _count(self, rows: int) -> None:
        now_s = self._now_s()
        if now_s >= self._window_until_s:
            self._window_until_s, self._window_rows = now_s + _BUSY_WINDOW_S, 0
        self._window_rows += rows
        if self._window_rows >= BUSY_ROWS:
            self._busy_until_s = now_s + _BUSY_S

    def _hand_over(self, rows: Sequence[OutboxRow]) -> None:
        held = self.holds.tenants  # A pause may have begun after the look.
        rows = [row for row in rows if (row.tenant or self._default_tenant) not in held]
        self._under_way = {row.seq for row in rows}
        self._storing = asyncio.create_task(self._take.take(rows, self._connection.identity))

    async def _settle(self) -> None:
        """Wait for the engine, then remove the rows that are done."""
        assert self._storing is not None
        handed = await self._storing
        self._storing = None
        if handed.refused:
            for row, reason in handed.refused[:_REFUSALS_LOGGED]:
                _log.warning("the outbox %s: row %d (%s) is refused: %s", self._name, row.seq, row.id, reason)
            numbers, reasons = [row.seq for row, _ in handed.refused], [reason for _, reason in handed.refused]
            await self._connection.fetch(statements.REFUSE, numbers, reasons)
        if handed.done:
            self._unseen.put_limit(await self._connection.value(statements.REMOVE, handed.done))
        self._under_way = set()
        self._progress.add(handed)
        self.holds.forget(handed.tenants - handed.held.keys())
        self.holds.put(handed.held, self._unseen.lowest, self._now_s())

    async def _keep_up(self) -> None:
        now_s = self._now_s()
        if self._unseen.needs_limit and self._storing is None:
            self._unseen.put_limit(await self._connection.value(statements.TRANSACTION))
        if (low := self.holds.end(now_s)) is not None:
            self._unseen.look_again(low)
        await self._announce(is_quiet=now_s < self._busy_until_s)
        if now_s >= self._clean_up_at_s:
            removed = await self._connection.value(statements.CLEAN_UP)
            self._clean_up_at_s = now_s + (0 if removed >= _CLEANED_AT_ONCE else _CLEAN_UP_S)

    async def _announce(self, *, is_quiet: bool) -> None:
        if is_quiet is not self._is_quiet:
            self._is_quiet = is_quiet
            value = statements.NOTIFY_NEVER if is_quiet else statements.NOTIFY_ALWAYS
            await self._connection.value(statements.WAKE_UP, value)
            self._linger_until_s = self._now_s() + _LINGER_S

    async def _rest(self) -> None:
        now_s = self._now_s()
        if self._is_quiet or now_s < self._linger_until_s:
            await asyncio.sleep(_BUSY_POLL_S)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self.holds.wait_s(now_s, POLL_S)):
                await self._connection.woken.wait()
