"""A program on PostgreSQL under the lasting troubles of `tests.endurance`, for some seconds each, and on a database
that is away for longer than a lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import pytest

from everbell.core.occurrence import Occurrence
from everbell.library import Everbell
from tests.endurance.postgres import HARMS, PostgresTrial
from tests.services import shared
from tests.services.postgres import PostgresServer

MANY = 300


@pytest.mark.parametrize("kind", HARMS)
def test_a_lasting_trouble_loses_nothing_and_fails_no_call(kind: str) -> None:
    with shared.had(PostgresServer) as server:
        result = asyncio.run(PostgresTrial(server, kind, minutes=0.1, spans=3).run())
    assert (result.lost, result.refused) == (0, {})
    assert result.acknowledged > 0
    assert all(span.delivered for span in result.spans)
    assert result.kills > 0 or kind != "kills"


def test_a_database_that_is_away_for_longer_than_a_lease_repeats_no_delivery(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: PostgresServer) -> None:
        bell = Everbell(server.fresh_schema())
        seen: Counter[str] = Counter()
        begun = asyncio.Event()

        @bell.on("work")
        async def work(event: Occurrence) -> None:
            seen[event.id] += 1
            begun.set()

        async with bell:
            events = [{"to": "handler:work", "payload": 1, "in_": f"{1_000 + 5 * number}ms"} for number in range(MANY)]
            made = await bell.schedule_many(events)
            await begun.wait()
            before = len(seen)
            # The program goes on with the events in memory until its lease ends.
            await asyncio.to_thread(server.stop)
            await _until(lambda: "lost its lease" in caplog.text)
            assert len(seen) > before, "no event was delivered while the database was away"
            await asyncio.to_thread(server.start)
            await _until(lambda: len(seen) == MANY)
            # An event that is delivered later shows that the partitions are back; by then, a repeated delivery
            # would have happened.
            for number in range(20):
                made_later = await bell.schedule({"n": number}, to="handler:work", in_=0)
                await _until(lambda: made_later.id in seen)  # noqa: B023
        assert set(made.ids) <= seen.keys()
        assert {name: times for name, times in seen.items() if times > 1} == {}

    with caplog.at_level(logging.INFO), shared.had(PostgresServer) as server:
        asyncio.run(scenario(server))


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 -- nothing tells when it is so
            await asyncio.sleep(0.01)
