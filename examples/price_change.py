"""Changing prices at midnight of Black Friday, to the second.

Each price has one event. All events are due at the same instant, which has an offset or a zone: "in n hours" would
drift. The program sends them in one batch, which it can repeat if the answer is lost. The events are delivered at that
instant and never before it; the receiver measures the lateness of each. (In this example midnight is two seconds away.)

    python examples/price_change.py
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from everbell import Everbell, Occurrence

ARTICLES = 1_000


async def main() -> None:
    bell = Everbell("memory:")
    midnight = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    prices = {f"article-{number}": 100 for number in range(ARTICLES)}
    changed = asyncio.Event()
    late_ms: list[float] = []

    @bell.on("prices")
    async def change(event: Occurrence) -> None:
        late_ms.append((datetime.now(UTC) - event.due).total_seconds() * 1_000)
        prices[event.payload["article"]] = event.payload["price"]
        if len(late_ms) == ARTICLES:
            changed.set()

    async with bell:
        events: list[dict[str, Any]] = [
            {
                "id": f"black-friday-{article}",
                "at": midnight.isoformat(),
                "to": "handler:prices",
                "payload": {"article": article, "price": 79},
                "tags": ["black-friday"],
            }
            for article in prices
        ]
        await bell.schedule_many(events)
        again = await bell.schedule_many(events)
        print(f"stored {again.accepted} changes of price, and sending them twice changed nothing")
        await asyncio.wait_for(changed.wait(), timeout=30)
    print(f"{list(prices.values()).count(79):,} prices changed, {sum(late < 0 for late in late_ms)} of them early")
    print(f"the last one {max(late_ms):.0f} ms after midnight")


if __name__ == "__main__":
    asyncio.run(main())
