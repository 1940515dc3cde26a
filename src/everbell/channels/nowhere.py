"""The channel for targets that this process has no channel for: every delivery is refused, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.channels.port import Delivery
from everbell.core.retry import Outcome


class NowhereChannel:
    """Never loses an event silently: what cannot be delivered here ends as dead, and can be redriven."""

    holds = False
    together = 1

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.begin():
                scheme = delivery.event.to.partition(":")[0]
                delivery.settle(Outcome("refused", f"nothing here delivers to {scheme}: targets"))

    async def close(self) -> None:
        pass
