"""The channel for targets without a channel in this process: every delivery is refused, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.channels.port import Delivery
from everbell.core.retry import Outcome


class NowhereChannel:
    """Refuses every delivery, so that the event becomes dead visibly and can be redriven."""

    holds = False
    together = 1

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.begin():
                scheme = delivery.event.to.partition(":")[0]
                delivery.settle(Outcome("refused", f"nothing here delivers to {scheme}: targets"))

    async def close(self) -> None:
        pass
