"""A delivery as the engine would hand it to a channel, with the channel's outcome."""

from __future__ import annotations

import asyncio
from typing import Any

from everbell.channels.port import SmallDesk
from everbell.core.event import Event
from everbell.core.retry import Outcome
from everbell.core.tenant import Tenant


class FakeDelivery:
    """Begins by default, and keeps its outcome."""

    epoch = 9
    desk = SmallDesk()

    def __init__(
        self,
        to: str = "https://shop.example/hook",
        payload: bytes = b'{"order": 17}',
        *,
        tenant: Tenant | None = None,
        attempt: int = 1,
        wanted: bool = True,
        sequence: int = 17,
        id: str = "order-17",
        **fields: Any,
    ) -> None:
        self.tenant = tenant or Tenant("shop")
        self.event = Event(
            id, self.tenant.name, 3, sequence, 1_767_225_600_250, 1_767_225_600_250, to, payload, 1_000, **fields
        )
        self.attempt = attempt
        self.wanted = wanted
        self.begun = 0
        self.given_back = 0
        self.outcomes: list[Outcome] = []
        self._settled = asyncio.Event()

    @property
    def outcome(self) -> Outcome:
        (outcome,) = self.outcomes
        return outcome

    def begin(self) -> bool:
        self.begun += self.wanted
        return self.wanted

    def settle(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._settled.set()

    def give_back(self) -> None:
        self.given_back += 1

    async def until_settled(self) -> Outcome:
        await asyncio.wait_for(self._settled.wait(), 10)
        return self.outcome
