"""One partition of a topic, as it is read: its records are taken in, some at a time, one batch after the other.

So the events of a key keep their order, also when the engine refuses some for a while: then nothing behind them is
taken, and the partition is paused. Other partitions go on; a key is only ever in one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from everbell.engine.port import OperationsPort
from everbell.errors import EverbellError, InvalidInput
from everbell.kafka.record import Asked, Poison, Record

_log = logging.getLogger("everbell.kafka")

RECORDS_MAX = 1_000
"""Taken in at a time: about what the engine stores with one fsync."""
RECORD_BYTES = 500
"""About what a record takes in memory besides its value."""
PAUSE_S = 0.05
PAUSE_S_MAX = 2.0
FINISH_S = 1.0
"""Whoever waits may wait for this very node to hand something over."""


class Tally:
    """What was read, over all partitions."""

    def __init__(self) -> None:
        self.records = 0
        self.events = 0
        self.refused = 0
        self.waiting_bytes = 0
        """Of records that were read and are not done."""


class Reading:
    """Records of one partition on their way to the engine.

    `is_done` is told the offset behind those that are: all before it are durable, or in the dead-letter topic.
    """

    def __init__(
        self,
        operations: OperationsPort,
        read: Callable[[Record], tuple[Sequence[Asked], Sequence[Poison]]],
        bury: Callable[[Sequence[Poison]], Awaitable[None]],
        tally: Tally,
        is_done: Callable[[int], None],
        on_pause: Callable[[bool], None],
    ) -> None:
        self._operations = operations
        self._read = read
        self._bury = bury
        self._tally = tally
        self._is_done = is_done
        self._on_pause = on_pause
        self._waiting: deque[tuple[Sequence[Record], int]] = deque()
        """As they came, with their size."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()

    def add(self, records: Sequence[Record]) -> None:
        """Take in these, after all that came before."""
        size = sum(len(record.value or b"") for record in records) + RECORD_BYTES * len(records)
        self._waiting.append((records, size))
        self._tally.waiting_bytes += size
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    @property
    def is_busy(self) -> bool:
        """Whether something is on its way."""
        return self._task is not None

    def leave(self) -> None:
        """Somebody else reads the partition from now on: nothing more is begun here, and nothing tried again."""
        self._is_stopping.set()
        self._tally.waiting_bytes -= sum(size for _, size in self._waiting)
        self._waiting.clear()

    async def finish(self) -> None:
        """Wait for what the engine is storing, but not for long; the rest will be read again."""
        self.leave()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=FINISH_S)
            for task in late:
                task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            first, size = self._waiting.popleft()
            records = list(first)
            while self._waiting and len(records) + len(self._waiting[0][0]) <= RECORDS_MAX:
                more, more_size = self._waiting.popleft()
                records += more
                size += more_size
            while not await self._takes_in(records):
                if self._is_stopping.is_set():
                    break
            self._tally.waiting_bytes -= size
        self._task = None

    async def _takes_in(self, records: Sequence[Record]) -> bool:
        """Take in a batch; False when that failed, and nothing may be passed over."""
        try:
            return await self._take_in(records)
        except Exception:
            _log.exception("records at %s could not be taken in; trying again", records[0].place)
            await self._rest(PAUSE_S_MAX)
            return False

    async def _take_in(self, records: Sequence[Record]) -> bool:
        asked: list[Asked] = []
        poisons: list[Poison] = []
        for record in records:
            events, wrong = self._read(record)
            asked += events
            poisons += wrong
        if not await self._schedule(asked, poisons):
            return False
        if poisons:
            await self._bury(poisons)
            self._tally.refused += len(poisons)
        self._tally.records += len(records)
        self._is_done(records[-1].offset + 1)
        return True

    async def _schedule(self, asked: list[Asked], poisons: list[Poison]) -> bool:
        """Store all, however long that takes; what can never be stored is poison. False when that was given up."""
        pause_s = PAUSE_S
        while True:
            asked, reason = await self._schedule_once(asked, poisons)
            if reason is None:
                if pause_s > PAUSE_S:
                    _log.info("reading from Kafka goes on")
                    self._on_pause(False)
                return True
            if pause_s == PAUSE_S:
                _log.warning("reading from Kafka pauses, as nothing can be scheduled: %s", reason)
            self._on_pause(True)
            await self._rest(max(pause_s, min(reason.retry_after_s or 0, PAUSE_S_MAX)))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
            if self._is_stopping.is_set():
                return False

    async def _schedule_once(
        self, asked: list[Asked], poisons: list[Poison]
    ) -> tuple[list[Asked], EverbellError | None]:
        """Returns what was not stored, in order, and why not."""
        by_tenant: dict[str, list[Asked]] = {}
        for one in asked:
            by_tenant.setdefault(one.tenant, []).append(one)
        left: list[Asked] = []
        reason: EverbellError | None = None
        for tenant, some in by_tenant.items():
            # More than fit into one group of the engine go one after the other: of two groups, the first may fail.
            for start in range(0, len(some), RECORDS_MAX):
                refused = await self._schedule_part(tenant, some[start : start + RECORDS_MAX], poisons)
                if refused:
                    reason = refused[0][1]
                    left += [one for one, _ in refused] + some[start + RECORDS_MAX :]
                    break
        return left, reason

    async def _schedule_part(
        self, tenant: str, part: list[Asked], poisons: list[Poison]
    ) -> list[tuple[Asked, EverbellError]]:
        results: Sequence[object]
        try:
            results = await self._operations.schedule_ids(tenant, [one.draft for one in part])
        except EverbellError as failed:
            results = [failed.as_value()] * len(part)
        refused: list[tuple[Asked, EverbellError]] = []
        wrong = 0
        for one, result in zip(part, results, strict=True):
            if isinstance(result, EverbellError):
                wrong += 1
                if _is_for_good(result):
                    poisons.append(Poison(one.record, str(result), one.index))
                else:
                    refused.append((one, result))
        self._tally.events += len(part) - wrong
        return refused

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_stopping.wait()
        except TimeoutError:
            return


def _is_for_good(error: EverbellError) -> bool:
    """Whether asking again cannot help: what was asked is wrong, or in conflict with what is there."""
    return isinstance(error, InvalidInput) or error.status == 409
