"""A blocked event loop is logged with its stack, and counted."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from everbell.clock import SystemClock
from everbell.node.loop_watch import LoopWatch
from everbell.testing import VirtualClock, run_virtual
from everbell.testing.virtual import VirtualLoop


class Logged(logging.Handler):
    """Collects messages, and tells when one contains a text."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.seen = threading.Event()
        self._awaited = awaited

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if self._awaited in self.messages[-1]:
            self.seen.set()


def hold_up_the_loop(until: threading.Event) -> None:
    until.wait(30)


def test_the_stack_of_a_blocked_loop_is_logged() -> None:
    logged = Logged("by:\n")
    logger = logging.getLogger("everbell.server")

    async def main() -> None:
        watch = LoopWatch(SystemClock())
        watch.start()
        hold_up_the_loop(until=logged.seen)
        assert logged.seen.is_set(), "the thread looks while the loop is blocked"
        for _ in range(3):
            await asyncio.sleep(0)  # The overdue timer of the watch runs.
        watch.stop()
        assert watch.blocks == 1
        assert watch.blocked_ms >= 1_000

    logger.addHandler(logged)
    try:
        asyncio.run(main())
    finally:
        logger.removeHandler(logged)
    stack, told = logged.messages
    assert "hold_up_the_loop(until=logged.seen)" in stack
    assert "the event loop was blocked for" in told
    assert "no stack" not in told


def test_a_process_that_was_stopped_is_told_without_a_stack(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        watch = LoopWatch(clock)
        watch.start()
        await asyncio.sleep(60)
        assert watch.blocks == 0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop._advance(7)
        await asyncio.sleep(1)
        watch.stop()
        assert watch.blocks == 1
        assert 6_500 <= watch.blocked_ms <= 7_500

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    assert "there is no stack" in caplog.text
