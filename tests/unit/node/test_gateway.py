"""The reports of a gateway about the engine behind it."""

from __future__ import annotations

import asyncio
from typing import Any

from everbell.core.health import Health
from everbell.core.process_report import ProcessReport
from everbell.core.request import Request
from everbell.engine.requests import GetHealth, ReportProcess
from everbell.errors import EverbellError
from everbell.node.gateway import Gateway
from everbell.testing import VirtualClock, run_virtual

REPORT = ReportProcess(0, ProcessReport(unauthorized=3))


class Link:
    """An engine that answers, fails or is silent, as a test says."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.mood = "well"
        self.asked = 0
        self.reports: list[ProcessReport] = []
        self._well = asyncio.Event()

    async def ask(self, request: Request[Any], /) -> Any:
        self.asked += 1
        if self.mood == "failing":
            raise EverbellError("health failed")
        if self.mood == "silent":
            await self._well.wait()
        if isinstance(request, ReportProcess):
            self.reports.append(request.report)
        return Health("ready") if isinstance(request, GetHealth) else "up 1\n"

    def wake(self) -> None:
        self.mood = "well"
        self._well.set()


def state_of(gateway: Gateway) -> str:
    return gateway._health.state


def test_a_gateway_is_not_ready_while_its_engine_is_silent() -> None:
    async def main(clock: VirtualClock) -> None:
        link: Any = Link()
        gateway = Gateway(None)  # type: ignore[arg-type]
        looking = asyncio.create_task(gateway._keep_looking(link, lambda: REPORT))
        await asyncio.sleep(5)
        assert state_of(gateway) == "ready"
        assert REPORT.report in link.reports
        link.mood = "silent"
        await asyncio.sleep(10)
        assert state_of(gateway) == "away"
        assert "does not answer" in str(gateway._health.reason)
        asked = link.asked
        await asyncio.sleep(60)
        assert link.asked == asked, "it waits for the answer that it asked for"
        link.wake()
        await asyncio.sleep(5)
        assert state_of(gateway) == "ready"
        looking.cancel()

    run_virtual(main)


def test_a_question_that_failed_is_asked_again() -> None:
    async def main(clock: VirtualClock) -> None:
        link: Any = Link()
        link.mood = "failing"
        gateway = Gateway(None)  # type: ignore[arg-type]
        looking = asyncio.create_task(gateway._keep_looking(link, lambda: REPORT))
        await asyncio.sleep(5)
        link.mood = "well"
        await asyncio.sleep(5)
        assert state_of(gateway) == "ready"
        looking.cancel()

    run_virtual(main)
