"""An application in its own process: transactions on several connections, with an order and perhaps with an event.

Each input line is a round of transactions; the answer comes when all have committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter, process_time
from typing import Any

import asyncpg
import msgspec
import uvloop

from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.plans import OutboxOrder, OutboxPlan, Sent
from everbell.outbox.statements import LOOK, REMOVE, SESSION

_INSERT = "INSERT INTO orders (note) VALUES ($1)"
_SCHEDULE = "SELECT everbell.schedule($1)"
_FILL = "SELECT count(everbell.schedule($1)) FROM generate_series(1, $2)"
_FILL_ROWS = 1_000
_DRAIN_ROWS = 2_000
_DRAIN_BYTES = 8 * 1024 * 1024


async def carry_out(connections: list[Any], order: OutboxOrder) -> Sent:
    """Make the transactions of an order."""
    start, cpu = perf_counter(), process_time()
    if order.work == "fill":
        for _ in range(order.count // _FILL_ROWS):
            await connections[0].fetchval(_FILL, order.event, _FILL_ROWS)
    elif order.work == "drain":
        await _drain(connections[0])
    else:
        event = order.event if order.work == "schedule" else None
        numbers = iter(range(order.count))
        await asyncio.gather(*(_transact(each, numbers, event, start, order.per_s) for each in connections))
    return Sent(perf_counter() - start, order.count, order.count, 0, process_time() - cpu)


async def _transact(
    connection: Any, numbers: Iterator[int], event: str | None, start_s: float, per_s: float | None
) -> None:
    insert = await connection.prepare(_INSERT)
    schedule = await connection.prepare(_SCHEDULE)
    for number in numbers:
        if per_s is not None:
            await asyncio.sleep(start_s + number / per_s - perf_counter())
        async with connection.transaction():
            await insert.fetch("a note")
            if event is not None:
                await schedule.fetch(event)


async def _drain(connection: Any) -> None:
    """Read and remove all rows, as a collector without Everbell behind it."""
    await connection.execute(SESSION)
    low = 0
    while True:
        found = await connection.fetch(LOOK, [low], [2**62], "default", [], _DRAIN_ROWS, _DRAIN_BYTES)
        if found[0]["seq"] is None:
            return
        low = found[-1]["seq"] + 1
        await connection.fetch(REMOVE, [row["seq"] for row in found])


async def run(plan: OutboxPlan) -> None:
    """Run until standard input ends."""
    connections = [await asyncpg.connect(plan.url) for _ in range(plan.connections)]
    async for line in lines_told():
        say(await carry_out(connections, msgspec.json.decode(line, type=OutboxOrder)))


if __name__ == "__main__":
    uvloop.run(run(plan_told(OutboxPlan)))
