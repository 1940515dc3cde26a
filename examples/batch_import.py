"""Import many events at once, safely: an invalid event affects no other, and running the import again adds nothing.

Every event has an id of its own, so the import can be repeated after a crash or a lost answer: Everbell finds the
existing events and schedules none of them twice.

    python examples/batch_import.py
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from everbell import Everbell

EVENTS = 20_000


def invoices() -> Iterator[dict[str, Any]]:
    """Reminders for unpaid invoices, one of them with a mistake."""
    for number in range(EVENTS):
        days = "soon" if number == 4_711 else f"{1 + number % 90}d"
        yield {
            "id": f"invoice-{number}",
            "key": f"customer-{number % 1_000}",
            "payload": {"invoice": number},
            "to": "https://billing.example/reminders",
            "in": days,
        }


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Everbell(f"rocksdb:{directory}/everbell-data", tenant="billing") as bell:
            began = time.perf_counter()
            batch = await bell.schedule_many(invoices())
            rate = batch.accepted / (time.perf_counter() - began)
            print(f"accepted {batch.accepted:,} of {len(batch.ids):,}")
            print(f"durable events a second: {rate:,.0f}")
            for refusal in batch.refused:
                print(f"refused number {refusal.index}: {refusal.error}")

            again = await bell.schedule_many(invoices())
            pending = sum([1 async for _ in bell.list(limit=1_000)])
            print(f"imported again, {again.accepted:,} accepted; {pending:,} events are pending")


if __name__ == "__main__":
    asyncio.run(main())
