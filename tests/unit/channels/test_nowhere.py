"""Targets that this process has no channel for."""

from __future__ import annotations

import asyncio

from everbell.channels.nowhere import NowhereChannel
from tests.unit.channels.fake_delivery import FakeDelivery


def test_every_delivery_is_refused_with_the_reason() -> None:
    async def main() -> None:
        channel = NowhereChannel()
        wanted, unwanted = FakeDelivery("kafka://topic"), FakeDelivery("kafka://topic", wanted=False)
        channel.start([wanted, unwanted])
        await channel.close()

        assert (wanted.outcome.result, wanted.outcome.reason) == ("refused", "nothing here delivers to kafka: targets")
        assert unwanted.outcomes == []

    asyncio.run(main())
