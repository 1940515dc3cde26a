"""A program on PostgreSQL under one lasting trouble: does its throughput last, and do the tables stay small?

The program schedules events that are due at once, in batches, and has a limited number of them outstanding: so it runs
as fast as it can, and the number of deliveries in each span of time is its throughput. Except in `overload`, where
it schedules half as much again as it delivered in the first seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import asyncpg

from everbell.core.occurrence import Occurrence
from everbell.errors import EverbellError
from everbell.library import Everbell
from everbell.stores.postgres.address import read_address
from tests.services.postgres import PostgresServer

BATCH = 100
OUTSTANDING_MAX = 4_000
CLIENTS = 3
SPANS = 10
"""Into how many spans a trial is divided. The first one is the measure of the others."""
_CALIBRATED_S = 5.0

_SIZES = """
    SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = $1::regnamespace
"""
_ONE_SESSION = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'everbell' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1
"""


@dataclass
class TrialSpan:
    """The result of one span of a trial."""

    seconds: float
    delivered: int
    table_bytes: dict[str, int]
    index_bytes: dict[str, int]

    @property
    def per_s(self) -> float:
        return self.delivered / self.seconds


@dataclass
class TrialResult:
    """The result of a trial."""

    spans: list[TrialSpan] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """The errors of schedule calls, by kind."""
    acknowledged: int = 0
    lost: int = 0
    repeated: int = 0
    kills: int = 0

    @property
    def ratios(self) -> list[float]:
        """The throughput of each span as a share of the first one's."""
        first = max(self.spans[0].per_s, 1e-9)
        return [span.per_s / first for span in self.spans]


class PostgresTrial:
    """One kind of trouble for some minutes."""

    def __init__(self, server: PostgresServer, kind: str, minutes: float, spans: int = SPANS) -> None:
        self.result = TrialResult()
        self._server = server
        self._harm = HARMS[kind]
        self._is_overload = kind == "overload"
        self._span_s = minutes * 60 / spans
        self._span_count = spans
        self._seen: Counter[str] = Counter()
        self._acknowledged: set[str] = set()
        self._delivered = 0
        self._ended = False

    async def run(self, tell: Callable[[str], None] = lambda line: None) -> TrialResult:
        url = self._server.fresh_schema()
        bell = Everbell(url)

        @bell.on("work")
        async def work(event: Occurrence) -> None:
            self._seen[event.id] += 1
            self._delivered += 1

        async with bell, self._session(url) as session, self._harm(self, url):
            clients = [asyncio.create_task(self._schedule(bell)) for _ in range(CLIENTS)]
            try:
                for number in range(self._span_count):
                    await self._watch(session, url)
                    tell(self._line(number))
            finally:
                self._ended = True
                await asyncio.gather(*clients)
            await self._drain()
        self.result.acknowledged = len(self._acknowledged)
        self.result.lost = len(self._acknowledged - self._seen.keys())
        self.result.repeated = self._seen.total() - len(self._seen)
        return self.result

    async def _schedule(self, bell: Everbell) -> None:
        began_s = monotonic()
        pace_s = 0.0
        while not self._ended:
            if self._is_overload and monotonic() - began_s > _CALIBRATED_S:
                rate = self._delivered / (monotonic() - began_s) if not pace_s else 0.0
                pace_s = pace_s or CLIENTS * BATCH / max(rate * 1.5, 1.0)
                await asyncio.sleep(pace_s)
            elif len(self._acknowledged) - len(self._seen) > OUTSTANDING_MAX:
                await asyncio.sleep(0.005)
                continue
            try:
                made = await bell.schedule_many([{"to": "handler:work", "payload": 1, "in_": 0}] * BATCH)
                self._acknowledged.update(name for name in made.ids if name is not None)
            except EverbellError as refused:
                self.result.refused[type(refused).__name__] += 1
                await asyncio.sleep(0.01)

    async def _watch(self, session: asyncpg.Connection[Any], url: str) -> None:
        began_s, before = monotonic(), self._delivered
        await asyncio.sleep(self._span_s)
        delivered, took_s = self._delivered - before, monotonic() - began_s
        rows = await session.fetch(_SIZES, f'"{read_address(url).schema}"')
        tables, indexes = ({row[0]: row[column] for row in rows} for column in (1, 2))
        self.result.spans.append(TrialSpan(took_s, delivered, tables, indexes))

    async def _drain(self) -> None:
        async with asyncio.timeout(120):
            while self._acknowledged - self._seen.keys():  # noqa: ASYNC110 -- deliveries come from many tasks
                await asyncio.sleep(0.05)

    def _line(self, number: int) -> str:
        span, ratio = self.result.spans[number], self.result.ratios[number]
        mib = {name: (size + span.index_bytes[name]) / (1 << 20) for name, size in span.table_bytes.items()}
        sizes = ", ".join(f"{name} {size:.1f}" for name, size in sorted(mib.items()) if size >= 1)
        return f"{number + 1:3} {span.per_s:9.0f}/s {ratio:5.2f}  MiB: {sizes or 'all below 1'}"

    @asynccontextmanager
    async def _session(self, url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
        session = await asyncpg.connect(read_address(url).dsn)
        try:
            yield session
        finally:
            await session.close()

    # The troubles

    @asynccontextmanager
    async def hold_xmin(self, url: str) -> AsyncIterator[None]:
        """A transaction stays open, so no dead row can be removed."""
        async with self._session(url) as session, session.transaction(isolation="repeatable_read"):
            await session.fetch("SELECT count(*) FROM pg_class")
            yield

    @asynccontextmanager
    async def scan(self, url: str) -> AsyncIterator[None]:
        """Three sessions read the pending events again and again, each in a transaction that stays open for a while."""

        async def reading(pause_s: float) -> None:
            schema = read_address(url).schema
            async with self._session(url) as session:
                while True:
                    async with session.transaction(isolation="repeatable_read", readonly=True):
                        # Not the records, which grow: the readers alone would use more of the machine all the time.
                        await session.fetch(f'SELECT count(body) FROM "{schema}".scheduled')
                        await asyncio.sleep(pause_s)

        async with _beside(*(reading(pause_s) for pause_s in (0.5, 3.0, 10.0))):
            yield

    @asynccontextmanager
    async def never_vacuum(self, url: str) -> AsyncIterator[None]:
        """No background process removes dead rows."""
        self._server.execute("ALTER SYSTEM SET autovacuum = off")
        self._server.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            self._server.execute("ALTER SYSTEM RESET autovacuum")
            self._server.execute("SELECT pg_reload_conf()")

    @asynccontextmanager
    async def overload(self, url: str) -> AsyncIterator[None]:
        """The clients schedule more than is delivered."""
        yield

    @asynccontextmanager
    async def kill_sessions(self, url: str) -> AsyncIterator[None]:
        """An administrator ends one session after the other."""

        async def killing() -> None:
            async with self._session(url) as session:
                while True:
                    await asyncio.sleep(0.5)
                    self.result.kills += len(await session.fetch(_ONE_SESSION))

        async with _beside(killing()):
            yield


HARMS = {
    "xmin": PostgresTrial.hold_xmin,
    "scanners": PostgresTrial.scan,
    "autovacuum": PostgresTrial.never_vacuum,
    "overload": PostgresTrial.overload,
    "kills": PostgresTrial.kill_sessions,
}


@asynccontextmanager
async def _beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work until the end of the block. An error in it is raised then."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
