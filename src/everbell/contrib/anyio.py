"""Everbell in programs on anyio, on the loop of asyncio or of trio.

    async with AnyioClient("http://bell:8420", tenant="shop") as client:
        await client.schedule({"order": 17}, to="queue:mail", in_="20m")

On asyncio, `AsyncClient` and `Everbell` work under anyio as they are. `AnyioClient` has the same methods and works on
both loops: its requests run in threads, on the connections of the blocking client.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from everbell.client.awaiting import AsyncClient
from everbell.client.call import Call, Lost, Reply
from everbell.client.connections import Connections

T = TypeVar("T")


class AnyioClient(AsyncClient):
    """A client of one tenant. A call that is cancelled may have been carried out."""

    def _prepare(self) -> None:
        self._connections = Connections(self._address, self._tls)

    async def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    async def _exchange(self, call: Call[T]) -> Reply | Lost:
        exchange = partial(self._connections.exchange, call, self._timeout_s + call.wait_s)
        return await anyio.to_thread.run_sync(exchange, abandon_on_cancel=True)

    async def _wait(self, pause_s: float) -> None:
        await anyio.sleep(pause_s)
