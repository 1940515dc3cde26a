"""Plain events are scheduled as parcels where that goes, and as drafts where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from everbell.clock import Clock
from everbell.core.allotment import Allotment
from everbell.core.plain import Plain
from everbell.core.spec import Draft
from everbell.engine.port import Seen
from everbell.entropy import Entropy
from everbell.errors import EverbellError
from everbell.stores.parcel import PARCEL_EVENTS_MAX, Parcel, parcel_of

PARCEL_EVENTS_MIN = 32
"""A parcel of fewer costs more than their drafts."""

Ids = Sequence[str | Seen | EverbellError]


class Parceller:
    """Makes the parcels, in front of an engine or of the link to one."""

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        allot: Callable[[int], Allotment | None],
        take_in: Callable[[Parcel], Awaitable[bool]],
        schedule_ids: Callable[[str, Sequence[Draft]], Awaitable[Ids]],
    ) -> None:
        self._now = clock.now
        self._nonces = entropy.nonces
        self._allot = allot
        self._take_in = take_in
        self._schedule_ids = schedule_ids

    async def schedule(self, tenant: str, plain: Plain) -> Ids:
        """For each event in turn its id, or why it was refused. `plain` is used up: whoever waits for the store holds
        each payload once."""
        if len(plain) <= PARCEL_EVENTS_MAX:
            return await self._schedule(tenant, plain)
        parts = plain.cut(PARCEL_EVENTS_MAX)
        plain.clear()
        ids: list[str | Seen | EverbellError] = []
        for some in await asyncio.gather(*(self._schedule(tenant, part) for part in parts)):
            ids.extend(some)
        return ids

    async def _schedule(self, tenant: str, plain: Plain) -> Ids:
        count = len(plain)
        try:
            allotment = self._allot(count) if count >= PARCEL_EVENTS_MIN else None
            if allotment is not None:
                parcel, ids = parcel_of(tenant, plain, allotment, self._nonces(count), self._now())
                plain.clear()
                if await self._take_in(parcel):
                    return ids
                plain = parcel.plain()
                del parcel
            return await self._schedule_ids(tenant, plain.drafts())
        except EverbellError as refused:
            # As values, for another part may be stored.
            return [refused.as_value()] * count
