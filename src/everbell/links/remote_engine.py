"""An engine at the other end of a link, as a gateway or another node asks it.

A gateway has places for new simple events in stock, so it prepares their rows itself and the engine stores them unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from everbell.clock import Clock
from everbell.core.allotment import Allotment
from everbell.core.request import Handlers, Request
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.engine.requests import Allot, Schedule
from everbell.engine.row_preparer import RowPreparer
from everbell.engine.seen import DraftResult
from everbell.engine.turn_batch import TurnBatch
from everbell.entropy import Entropy
from everbell.errors import EverbellError, NotOwner
from everbell.links.link_client import LinkClient
from everbell.stores.port import PreparedRows

A = TypeVar("A")

STOCK = 65_536
"""How many places a gateway requests at a time. Unused places leave a harmless gap in the sequences when it stops."""
_ASK_AGAIN_S = 1.0


class RemoteEngine:
    """Asks over a link. Drafts of one loop iteration travel as one request."""

    def __init__(self, link: LinkClient) -> None:
        self.link = link
        self._turn = TurnBatch(link.ask, _own_results)
        self._handlers = Handlers(Schedule.by(self._schedule), otherwise=link.ask)

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        return self._handlers.ask(request)

    def _schedule(self, request: Schedule) -> Awaitable[Sequence[DraftResult]]:
        body = request.body
        if isinstance(body, PreparedRows):
            return self.link.ask(request)
        return self._turn.add(request.tenant, body.drafts() if isinstance(body, SimpleBatch) else body)


def _own_results(
    tenant: str, drafts: Sequence[Draft], results: Sequence[DraftResult], start: int, end: int
) -> Sequence[DraftResult]:
    return results[start:end]


class GatewayEngine(RemoteEngine):
    """The engine behind a gateway."""

    def __init__(self, link: LinkClient, clock: Clock, entropy: Entropy) -> None:
        super().__init__(link)
        self._stock: Allotment | None = None
        self._asking: asyncio.Task[None] | None = None
        self._ask_from_s = 0.0
        self._row_preparer = RowPreparer(clock, entropy, self._places, self._send)

    def _schedule(self, request: Schedule) -> Awaitable[Sequence[DraftResult]]:
        if isinstance(request.body, SimpleBatch):
            return self._row_preparer.schedule(request.tenant, request.body)
        return super()._schedule(request)

    async def _send(self, request: Schedule) -> Sequence[DraftResult]:
        try:
            return await super()._schedule(request)
        except NotOwner:
            if isinstance(request.body, PreparedRows):
                self._stock = None  # Other nodes own the partitions of these places.
            raise

    def _places(self, count: int) -> Allotment | None:
        """Places from the stock, which is refilled in time; None if the engine gives none."""
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
            self._asking = loop.create_task(self._ask_for_places())

    async def _ask_for_places(self) -> None:
        allotted = None
        with suppress(EverbellError):  # Then the stock is empty, and the drafts get the error when they are sent.
            allotted = await self.link.ask(Allot(STOCK))
        if allotted is None:
            self._ask_from_s = asyncio.get_running_loop().time() + _ASK_AGAIN_S
        self._stock = allotted
