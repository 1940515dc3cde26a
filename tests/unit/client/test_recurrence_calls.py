"""Calls about recurring events, against the library: the whole way to the engine and back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from everbell.core.repeat_spec import RepeatSpec
from everbell.errors import Conflict
from everbell.library import Everbell

WEEKDAYS = {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin"}


def test_recurring_events_through_the_library() -> None:
    async def main() -> None:
        async with Everbell("memory:") as bell:
            shown = await bell.preview(WEEKDAYS, at=datetime(2026, 3, 27, tzinfo=UTC), count=2)
            assert [upcoming.local for upcoming in shown.occurrences] == [
                "2026-03-27T09:00:00+01:00",
                "2026-03-30T09:00:00+02:00",
            ]
            assert shown.occurrences[0].at == datetime(2026, 3, 27, 8, tzinfo=UTC)
            assert shown.more
            made = await bell.schedule(
                {"n": 1}, to="handler:work", repeat=RepeatSpec(every="1h"), id="report", in_="1h"
            )
            assert (await bell.preview_event("report", count=1)).occurrences[0].at == made.at
            paused = await bell.pause("report", note="holidays")
            assert (paused.status, (paused.paused or {})["note"]) == ("paused", "holidays")
            resumed = await bell.resume("report", note="back", version=paused.version)
            assert (resumed.status, resumed.paused) == ("scheduled", None)
            assert (resumed.counters or {})["fired"] == 0
            with pytest.raises(Conflict, match="not paused"):
                await bell.resume("report")
            until = made.at - timedelta(hours=2)
            filled = await bell.backfill("report", from_=until - timedelta(hours=2), until=until)
            assert (filled.scheduled, filled.existing, len(filled.ids)) == (3, 0, 3)
            again = await bell.backfill("report", from_=until, until=until)
            assert (again.scheduled, again.existing, again.ids) == (0, 1, filled.ids[-1:])

    asyncio.run(main())


def test_durations_and_times_of_python_can_be_used() -> None:
    async def main() -> None:
        async with Everbell("memory:") as bell:
            until = datetime(2126, 1, 1, tzinfo=UTC)
            await bell.schedule(to="queue:q", repeat={"every": timedelta(hours=1), "until": until}, id="report", in_=60)
            assert (await bell.get("report")).repeat == {"every": "1h", "until": "2126-01-01T00:00:00.000Z"}

    asyncio.run(main())
