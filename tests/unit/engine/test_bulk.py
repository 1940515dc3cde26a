"""One request for every event that a search finds."""

from __future__ import annotations

from typing import Any

from everbell.core.amendment import Amendment
from everbell.core.request import Request
from everbell.core.time import HOUR_MS
from everbell.engine.bulk import cancel_matching
from everbell.engine.requests import Amend, CancelMatching, Find, Get
from everbell.stores.port import Filter
from tests.unit.engine.stage import Stage, play


def test_events_that_move_to_an_earlier_time_meanwhile_are_cancelled_too() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(600):
            await stage.schedule(f"e{number}", HOUR_MS, tags=("old",))
        late = await stage.schedule("late", 2 * HOUR_MS, tags=("old",))
        pages = 0

        async def ask(request: Request[Any]) -> Any:
            nonlocal pages
            answer = await stage.engine.ask(request)
            if isinstance(request, Find):
                pages += 1
                if pages == 1:
                    # After the first page, the last event moves to a place before the cursor.
                    earlier = Amendment(due_at=stage.clock.now() + HOUR_MS // 2)
                    await stage.engine.ask(Amend("default", late.id, earlier, None))
            return answer

        assert await cancel_matching(ask, CancelMatching(Filter("default", tag="old"))) == 601
        assert (await stage.engine.ask(Get("default", late.id))).status == "cancelled"

    play(scene)
