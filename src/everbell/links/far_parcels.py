"""The engine's operations as a gateway has them: it gives plain events their places itself, and makes their rows."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from everbell.clock import Clock
from everbell.core.allotment import Allotment
from everbell.core.plain import Plain
from everbell.engine.parceller import Ids, Parceller
from everbell.entropy import Entropy
from everbell.errors import EverbellError
from everbell.links.far import FarOperations
from everbell.links.link import GatewayEnd
from everbell.stores.parcel import Parcel

STOCK = 65_536
"""How many places are asked for at a time. What is not used when the gateway ends is a gap in the sequences, and does
not matter."""
_ASK_AGAIN_S = 1.0


class GatewayOperations(FarOperations):
    """`OperationsPort` of a gateway."""

    def __init__(self, link: GatewayEnd, clock: Clock, entropy: Entropy) -> None:
        super().__init__(link)
        self._stock: Allotment | None = None
        self._asking: asyncio.Task[None] | None = None
        self._ask_from_s = 0.0
        self._parceller = Parceller(clock, entropy, self._places, self._send_parcel, self.schedule_ids)

    async def schedule_plain(self, tenant: str, plain: Plain) -> Ids:
        return await self._parceller.schedule(tenant, plain)

    def _places(self, count: int) -> Allotment | None:
        """So many of those in stock, of which there are always some; None where the engine gives none."""
        stock = self._stock
        if stock is None or stock.count < STOCK // 2:
            self._restock()
        if stock is None or stock.count < count:
            return None
        places, self._stock = stock.cut(count)
        return places

    def _restock(self) -> None:
        loop = asyncio.get_running_loop()
        if (self._asking is None or self._asking.done()) and loop.time() >= self._ask_from_s:
            self._asking = loop.create_task(self._ask())

    async def _ask(self) -> None:
        allotted = None
        with suppress(EverbellError):  # Then there are none, and drafts tell what is wrong.
            allotted = await self.allot(STOCK)
        if allotted is None:
            self._ask_from_s = asyncio.get_running_loop().time() + _ASK_AGAIN_S
        self._stock = allotted

    async def _send_parcel(self, parcel: Parcel) -> bool:
        taken = await self.take_in(parcel)
        if not taken:
            self._stock = None  # Others own what these places are in.
        return taken
