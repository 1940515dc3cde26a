"""One partition of a topic on its way to the engine: its records are scheduled in batches, one after the other.

So the events of a key keep their order even if the engine refuses some for a while: then no later record is
scheduled, and the partition is paused. Other partitions go on, because a key is in one partition only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from everbell.core.batch_item import BatchItem
from everbell.core.request import Ask
from everbell.engine.requests import ApplyItems, Schedule
from everbell.errors import BeingDelivered, Conflict, EverbellError, InvalidInput
from everbell.kafka.record import Asked, KafkaRecord, PoisonRecord

_log = logging.getLogger("everbell.kafka")

RECORDS_MAX = 1_000
"""The limit of a batch: about one fsync of the engine."""
RECORD_BYTES = 500
"""The approximate overhead of a record in memory."""
_PER_TURN = 100
"""How many records are read before other tasks run."""
PAUSE_S = 0.05
PAUSE_S_MAX = 2.0
FINISH_S = 1.0
"""Short, because the engine may be waiting for this very node to hand over a partition."""


class Tally:
    """Counts over all partitions."""

    def __init__(self) -> None:
        self.records = 0
        self.events = 0
        self.refused = 0
        self.waiting_bytes = 0
        """The bytes of records in memory that are not done."""


class Reading:
    """Records of one partition on their way to the engine.

    `is_done` gets the offset after the records that are done: all before it are durable or in the dead-letter topic.
    """

    def __init__(
        self,
        ask: Ask,
        read: Callable[[KafkaRecord], Awaitable[tuple[Sequence[Asked], Sequence[PoisonRecord]]]],
        bury: Callable[[Sequence[PoisonRecord]], Awaitable[None]],
        tally: Tally,
        is_done: Callable[[int], None],
        on_pause: Callable[[bool], None],
    ) -> None:
        self._ask = ask
        self._read = read
        self._bury = bury
        self._tally = tally
        self._is_done = is_done
        self._on_pause = on_pause
        self._waiting: deque[tuple[Sequence[KafkaRecord], int]] = deque()  # Fetched records in order, with their size.
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()

    def add(self, records: Sequence[KafkaRecord]) -> None:
        """Schedule these records after all previous ones."""
        size = sum(len(record.value or b"") for record in records) + RECORD_BYTES * len(records)
        self._waiting.append((records, size))
        self._tally.waiting_bytes += size
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self) -> None:
        """Another reader has the partition now: begin nothing more, and give up the current batch.

        The next reader reads the batch again. If this reader went on with retries, a record that replaces or cancels an
        event could take effect again, after later records that the next reader has applied.
        """
        self._stop()
        if self._task is not None:
            self._task.cancel()

    async def finish(self) -> None:
        """Wait a short time for the engine to store the current batch; other records will be read again."""
        self._stop()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=FINISH_S)
            for task in late:
                task.cancel()

    def _stop(self) -> None:
        self._is_stopping.set()
        self._tally.waiting_bytes -= sum(size for _, size in self._waiting)
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            await self._run_batch()
        self._task = None

    async def _run_batch(self) -> None:
        first, size = self._waiting.popleft()
        records = list(first)
        while self._waiting and len(records) + len(self._waiting[0][0]) <= RECORDS_MAX:
            more, more_size = self._waiting.popleft()
            records += more
            size += more_size
        try:
            while not await self._takes_in(records):
                if self._is_stopping.is_set():
                    break
        finally:
            self._tally.waiting_bytes -= size

    async def _takes_in(self, records: Sequence[KafkaRecord]) -> bool:
        """Schedule a batch; False if that failed and the batch must be retried."""
        try:
            return await self._take_in(records)
        except Exception:
            _log.exception("records at %s could not be taken in; trying again", records[0].place)
            await self._rest(PAUSE_S_MAX)
            return False

    async def _take_in(self, records: Sequence[KafkaRecord]) -> bool:
        asked: list[Asked] = []
        poisons: list[PoisonRecord] = []
        for number, record in enumerate(records, 1):
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)
            events, wrong = await self._read(record)
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

    async def _schedule(self, asked: list[Asked], poisons: list[PoisonRecord]) -> bool:
        """Store all events, with retries. Events that can never be stored become refused. False if interrupted."""
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
        self, asked: list[Asked], poisons: list[PoisonRecord]
    ) -> tuple[list[Asked], EverbellError | None]:
        """The events that were not stored, in order, and the reason."""
        by_tenant: dict[str, list[Asked]] = {}
        for one in asked:
            by_tenant.setdefault(one.tenant, []).append(one)
        left: list[Asked] = []
        reason: EverbellError | None = None
        for tenant, some in by_tenant.items():
            # Batches of more than one engine group go one after the other, because the first of two groups may fail.
            for start in range(0, len(some), RECORDS_MAX):
                refused = await self._schedule_part(tenant, some[start : start + RECORDS_MAX], poisons)
                if refused:
                    reason = refused[0][1]
                    left += [one for one, _ in refused] + some[start + RECORDS_MAX :]
                    break
        return left, reason

    async def _schedule_part(
        self, tenant: str, part: list[Asked], poisons: list[PoisonRecord]
    ) -> list[tuple[Asked, EverbellError]]:
        results: Sequence[object]
        try:
            results = await self._apply(tenant, [one.item for one in part])
        except EverbellError as failed:
            results = [failed.as_value()] * len(part)
        refused: list[tuple[Asked, EverbellError]] = []
        wrong = 0
        for one, result in zip(part, results, strict=True):
            if isinstance(result, EverbellError):
                if one.may_have_ended and result.status == Conflict.status and _is_for_good(result):
                    continue
                wrong += 1
                if _is_for_good(result):
                    poisons.append(PoisonRecord(one.record, str(result), one.index))
                else:
                    refused.append((one, result))
        self._tally.events += len(part) - wrong
        return refused

    async def _apply(self, tenant: str, items: Sequence[BatchItem]) -> Sequence[object]:
        if any(item.mode != "create" for item in items):
            return await self._ask(ApplyItems(tenant, items))
        # Events are scheduled faster than items are applied.
        return await self._ask(Schedule(tenant, [item.draft for item in items if item.draft is not None]))

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_stopping.wait()
        except TimeoutError:
            return


def _is_for_good(error: EverbellError) -> bool:
    """Whether a retry cannot help: the event is invalid or conflicts with a stored one. An event that is being
    delivered can be replaced later, unless that ends it.
    """
    return isinstance(error, InvalidInput) or (error.status == 409 and not isinstance(error, BeingDelivered))
