"""Drafts of one loop iteration are scheduled together, and each caller gets its own results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from everbell.core.spec import Draft
from everbell.engine.requests import Schedule
from everbell.engine.seen import DraftResult
from everbell.engine.turn_batch import TurnBatch
from everbell.errors import NotOwner, OutcomeUnknown

DRAFTS = [Draft(1_767_225_600_000, "queue:work", b"1"), Draft(1_767_225_600_000, "queue:work", b"2")]


class Scripted:
    """An engine that waits for a script to set the results of the drafts."""

    def __init__(self) -> None:
        self.asked: list[Schedule] = []
        self.results: asyncio.Future[Sequence[DraftResult]] = asyncio.get_running_loop().create_future()

    def schedule(self, request: Schedule) -> asyncio.Future[Sequence[DraftResult]]:
        self.asked.append(request)
        return self.results


async def batched() -> tuple[Scripted, list[asyncio.Future[Sequence[DraftResult]]]]:
    script = Scripted()
    turn = TurnBatch(script.schedule, lambda tenant, drafts, results, start, end: results[start:end])
    answers = [turn.add("shop", [draft]) for draft in DRAFTS]
    await asyncio.sleep(0)
    assert script.asked == [Schedule("shop", DRAFTS)], "one request for both"
    return script, answers


def test_each_gets_its_own_results() -> None:
    async def main() -> None:
        script, answers = await batched()
        moving = NotOwner("moving")
        script.results.set_result(["ev_1", moving])
        assert [await answer for answer in answers] == [["ev_1"], [moving]]

    asyncio.run(main())


def test_an_outcome_is_unknown_when_the_request_is_cancelled() -> None:
    async def main() -> None:
        script, answers = await batched()
        script.results.cancel()
        for answer in answers:
            with pytest.raises(OutcomeUnknown):
                await answer

    asyncio.run(main())


def test_drafts_of_the_next_iteration_go_with_the_next_request() -> None:
    async def main() -> None:
        script = Scripted()
        turn = TurnBatch(script.schedule, lambda tenant, drafts, results, start, end: results[start:end])
        for draft in DRAFTS:
            turn.add("shop", [draft])
            await asyncio.sleep(0)
        assert script.asked == [Schedule("shop", [draft]) for draft in DRAFTS]

    asyncio.run(main())
