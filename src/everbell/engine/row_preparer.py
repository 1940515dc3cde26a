"""Schedules simple events as prepared rows if the engine reserves places for them, else as drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from everbell.clock import Clock
from everbell.core.allotment import Allotment
from everbell.core.simple_batch import SimpleBatch
from everbell.engine.requests import Schedule
from everbell.engine.seen import DraftResult
from everbell.entropy import Entropy
from everbell.errors import EverbellError, NotOwner
from everbell.stores.row_makers import row_maker

# Preparing the rows of fewer events costs more than sending drafts.
PREPARED_EVENTS_MIN = 32

# The engine stores prepared rows as one unit: all of up to this many events of a request are stored, or none.
PREPARED_EVENTS_MAX = 1_000


class RowPreparer:
    """Prepares rows in front of an engine, or in front of the link to an engine."""

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        allot: Callable[[int], Allotment | None],
        schedule: Callable[[Schedule], Awaitable[Sequence[DraftResult]]],
    ) -> None:
        """`schedule` takes prepared rows and drafts."""
        self._now = clock.now
        self._nonces = entropy.nonces
        self._allot = allot
        self._send = schedule

    async def schedule(self, tenant: str, plain: SimpleBatch) -> Sequence[DraftResult]:
        """Return for each event, in order, its id or the reason why it was refused.

        `plain` is cleared, so that each payload is in memory only once while the store is working.
        """
        if len(plain) <= PREPARED_EVENTS_MAX:
            return await self._schedule(tenant, plain)
        parts = plain.cut(PREPARED_EVENTS_MAX)
        plain.clear()
        ids: list[DraftResult] = []
        for some in await asyncio.gather(*(self._schedule(tenant, part) for part in parts)):
            ids.extend(some)
        return ids

    async def _schedule(self, tenant: str, plain: SimpleBatch) -> Sequence[DraftResult]:
        count = len(plain)
        try:
            allotment = self._allot(count) if count >= PREPARED_EVENTS_MIN else None
            if allotment is not None:
                maker = row_maker(allotment.row_format)
                rows, ids = maker.make(tenant, plain, allotment, self._nonces(count), self._now())
                plain.clear()
                try:
                    await self._send(Schedule(tenant, rows))
                    return ids
                except NotOwner:
                    plain = SimpleBatch.of(maker.events(rows))
                    del rows
            return await self._send(Schedule(tenant, plain.drafts()))
        except EverbellError as refused:
            # Returned, not raised, because another part may be stored.
            return [refused.as_value()] * count
