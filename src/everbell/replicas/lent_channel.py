"""A channel that another engine of the same process owns, and closes."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.channels.port import Channel, Delivery


class LentChannel:
    """Delivers through the channel, and leaves it open."""

    def __init__(self, channel: Channel) -> None:
        self.holds = channel.holds
        self.together = channel.together
        self._start = channel.start

    def start(self, deliveries: Sequence[Delivery]) -> None:
        self._start(deliveries)

    async def close(self) -> None:
        """The owner closes it."""
