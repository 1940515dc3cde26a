"""Single events that are scheduled together are answered as if each had come alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from everbell.core.request import Handlers
from everbell.engine.requests import Schedule
from everbell.engine.seen import DraftResult
from everbell.errors import NotOwner
from tests.unit.api.api_caller import Answered, Caller, called

EVENTS = "/v1/tenants/shop/events"
SOON = {"in": "1h", "to": "queue:work"}


class Scripted:
    """An engine that gets the results of the drafts from the test."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.results: asyncio.Future[Sequence[DraftResult]] = asyncio.get_running_loop().create_future()

    def schedule(self, request: Schedule) -> asyncio.Future[Sequence[DraftResult]]:
        self.sizes.append(len(request.body))
        return self.results


async def posted(caller: Caller) -> tuple[Scripted, list[asyncio.Task[Answered]]]:
    script = Scripted()
    scripted = Caller(caller.engine, caller.clock, Handlers(Schedule.by(script.schedule)).ask)
    answers = [asyncio.create_task(scripted.call("POST", EVENTS, SOON)) for _ in range(2)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert script.sizes == [2], "one request for both"
    return script, answers


def test_each_gets_its_own_answer() -> None:
    async def test(caller: Caller) -> None:
        script, answers = await posted(caller)
        script.results.set_result(["ev_1", NotOwner("moving")])
        assert [(await answer).status for answer in answers] == [201, 503]

    called(test)


def test_the_outcome_of_a_cancelled_write_is_unknown() -> None:
    async def test(caller: Caller) -> None:
        script, answers = await posted(caller)
        script.results.cancel()
        # 503 would say that nothing was stored, and a client that asks again would have the event twice.
        assert [(await answer).status for answer in answers] == [504, 504]

    called(test)
