"""A channel with a span around each attempt.

It stands between the engine and the channel, so neither needs code for tracing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from everbell.channels.port import Channel, Delivery, Desk
from everbell.clock import Clock
from everbell.core.retry import Outcome
from everbell.core.tenant import Tenant

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from everbell.tracing import Tracing


class TracedChannel:
    """Gives the channel deliveries that carry the trace context of their attempt."""

    def __init__(self, channel: Channel, tracing: Tracing, clock: Clock) -> None:
        self._channel = channel
        self._desk = _TracedDesk(tracing, clock)
        self.holds = channel.holds
        self.together = channel.together

    def start(self, deliveries: Sequence[Delivery]) -> None:
        self._channel.start([_TracedDelivery(delivery, self._desk) for delivery in deliveries])

    async def close(self) -> None:
        await self._channel.close()


class _TracedDelivery:
    __slots__ = ("_desk", "attempt", "event", "inner", "span")

    def __init__(self, inner: Delivery, desk: _TracedDesk) -> None:
        self.inner = inner
        self.event = inner.event
        self.attempt = inner.attempt
        self.span: Span | None = None
        self._desk = desk

    @property
    def tenant(self) -> Tenant:
        return self.inner.tenant

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    @property
    def desk(self) -> Desk:
        return self._desk

    def begin(self) -> bool:
        return bool(self._desk.begin_all((self,)))

    def settle(self, outcome: Outcome) -> None:
        self._desk.settle_all((self,), outcome)

    def give_back(self) -> None:
        """Return the delivery, because there was no attempt. The span is dropped without being sent."""
        self.span = None
        self.event = self.inner.event
        self.inner.give_back()


class _TracedDesk:
    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing = tracing
        self._now = clock.now

    def begin_all(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        from everbell.tracing import traceparent_of

        if not deliveries:
            return ()
        traced = {id(delivery.inner): delivery for delivery in cast("Sequence[_TracedDelivery]", deliveries)}
        inner = [delivery.inner for delivery in traced.values()]
        begun = [traced[id(delivery)] for delivery in inner[0].desk.begin_all(inner)]
        now = self._now()
        for delivery in begun:
            delivery.span = self._tracing.attempt(delivery, now)
            delivery.event = replace(delivery.inner.event, traceparent=traceparent_of(delivery.span))
        return begun

    def settle_all(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        if not deliveries:
            return
        traced = cast("Sequence[_TracedDelivery]", deliveries)
        for delivery in traced:
            if delivery.span is not None:
                self._tracing.attempted(delivery.span, outcome)
        traced[0].inner.desk.settle_all([delivery.inner for delivery in traced], outcome)
