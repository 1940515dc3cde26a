"""The channels of an engine by the scheme of their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from everbell.channels.handler import HandlerChannel
from everbell.channels.nowhere import NowhereChannel
from everbell.channels.port import Channel
from everbell.clock import Clock
from everbell.engine.traced_channel import TracedChannel

if TYPE_CHECKING:
    from everbell.tracing import Tracing


class ChannelTable:
    """Finds the channel of a target."""

    def __init__(self, channels: Mapping[str, Channel], clock: Clock, tracing: Tracing | None) -> None:
        handlers = channels.get("handler")
        self._handlers = handlers if isinstance(handlers, HandlerChannel) else None
        self._channels: dict[str, Channel] = dict(channels)
        if tracing is not None:
            self._channels = {scheme: TracedChannel(each, tracing, clock) for scheme, each in channels.items()}
        self._nowhere = NowhereChannel()

    def channel_of(self, group: str) -> Channel:
        """The channel of a target group. Without one, deliveries are refused."""
        return self._channels.get(group.partition(":")[0]) or self._nowhere

    def lacks_handler(self, group: str) -> bool:
        """Whether a target group is a handler that is not registered in this program."""
        return self._handlers is not None and self._handlers.lacks(group)

    async def close_holding(self) -> None:
        """Close the channels that hold deliveries until a worker asks for them."""
        for channel in self._channels.values():
            if channel.holds:
                await channel.close()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
