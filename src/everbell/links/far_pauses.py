"""The pauses at the other end of a link. Nothing goes out from a gateway, so it keeps no copy of them."""

from __future__ import annotations

from everbell.core.pause import Pause, Put, What
from everbell.links.link import GatewayEnd


class FarPauses:
    """`PausesPort` at the other end of a link."""

    def __init__(self, link: GatewayEnd) -> None:
        self._link = link

    async def pauses(self) -> list[Pause]:
        pauses: list[Pause] = await self._link.call("pauses")
        return pauses

    async def put(self, pause: Pause) -> Put:
        put: Put = await self._link.call("put_pause", pause)
        return put

    async def drop(self, tenant: str, what: What, name: str) -> Pause:
        pause: Pause = await self._link.call("drop_pause", tenant, what, name)
        return pause
