"""Log lines that could be thousands are one a minute, with a count."""

from __future__ import annotations

import asyncio
import logging

import pytest

from everbell.core.tenant import Limits, Tenant
from everbell.engine.notices import LINES_MAX, Notices
from everbell.testing import VirtualClock, run_virtual
from tests.unit.engine.stage import REFUSED, Stage, play


def test_the_same_is_told_once_a_minute_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        notices = Notices(clock)
        for number in range(100):
            notices.tell("deaths", f"order {number} is gone", f"order {number} is gone")
        notices.tell("deaths", "another reason", "another reason")
        assert caplog.messages == ["order 0 is gone", "another reason"]
        await asyncio.sleep(60)
        notices.flush()
        assert caplog.messages[2:] == ["deaths: 99 more of the same or similar in the last minute"]
        notices.tell("deaths", "order 7 is gone", "order 7 is gone")
        assert caplog.messages[-1] == "order 7 is gone"

    with caplog.at_level(logging.WARNING):
        run_virtual(main)


def test_the_number_of_different_lines_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        notices = Notices(clock)
        for number in range(1_000):
            notices.tell("deaths", "x" * (number % 150), "gone")
        assert len(caplog.messages) == LINES_MAX
        await asyncio.sleep(60)
        notices.flush()
        assert caplog.messages[-1] == f"deaths: {1_000 - LINES_MAX} more of the same or similar in the last minute"

    with caplog.at_level(logging.WARNING):
        run_virtual(main)


def test_deaths_quotas_and_queues_without_workers_have_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Stage) -> None:
        stage.receiver.answer = lambda delivery: REFUSED
        dead = await stage.schedule("one")
        await stage.schedule("two", to="queue:mail")
        await stage.pass_ms(100)
        assert isinstance(await stage.ask("three", tenant="small"), Exception)
        await stage.pass_ms(75_000)
        text = "\n".join(caplog.messages)
        assert f"event {dead.id} to https://shop.example:443 is dead after 1 attempts: never" in text
        assert "tenant 'small' may have 0 events pending; events above that are refused" in text
        assert "tenant default: the queue mail has due events, and no worker has called for a minute" in text
        assert text.count("the queue mail") == 1

    with caplog.at_level(logging.WARNING):
        play(scene, tenants=[Tenant("small", limits=Limits(pending=0))])
