"""Single events that are scheduled together are answered as if each had come alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from everbell.core.spec import Draft
from everbell.engine.port import OperationsPort
from everbell.errors import NotOwner
from everbell.server.gatherer import Gatherer
from everbell.server.message import Response

DRAFTS = [Draft(1_767_225_600_000, "queue:work", b"1"), Draft(1_767_225_600_000, "queue:work", b"2")]


class Scripted:
    """Operations that wait for a script to say what became of the drafts."""

    def __init__(self) -> None:
        self.calls: list[list[Draft]] = []
        self.results: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def schedule_ids(self, tenant: str, drafts: Sequence[Draft]) -> asyncio.Future[list[Any]]:
        self.calls.append(list(drafts))
        return self.results


async def gathered() -> tuple[Scripted, list[asyncio.Future[Response]]]:
    script = Scripted()
    operations: OperationsPort = script  # type: ignore[assignment]
    gatherer = Gatherer(operations)
    answers = [gatherer.add("shop", draft) for draft in DRAFTS]
    await asyncio.sleep(0)
    assert script.calls == [DRAFTS], "one call for both"
    return script, answers


def test_each_gets_its_own_answer() -> None:
    async def main() -> None:
        script, answers = await gathered()
        script.results.set_result(["ev_1", NotOwner("moving")])
        assert [(await answer).status for answer in answers] == [201, 503]

    asyncio.run(main())


def test_what_was_cancelled_in_the_middle_is_not_known() -> None:
    async def main() -> None:
        script, answers = await gathered()
        script.results.cancel()
        # 503 would say that nothing was stored, and whoever asks again would have it twice.
        assert [(await answer).status for answer in answers] == [504, 504]

    asyncio.run(main())
