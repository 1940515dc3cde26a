"""A recurring report: by cron in a zone, with a preview, a pause, and a backfill of missed reports.

A receiver that was away wants only the latest missed report: five occurrences lie in the past, and one is delivered.

    python examples/recurring_report.py
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from everbell import Everbell, Occurrence


async def main() -> None:
    bell = Everbell("memory:")
    rang: asyncio.Queue[Occurrence] = asyncio.Queue()

    @bell.on("reports")
    async def report(event: Occurrence) -> None:
        await rang.put(event)

    async with bell:
        nightly = {"cron": "30 2 * * *", "tz": "Europe/Berlin", "gap": "after"}
        ahead = await bell.preview(nightly, at=datetime(2027, 3, 27, tzinfo=UTC), count=3)
        print("when clocks go forward: " + ", ".join(str(time.local) for time in ahead.occurrences))

        started_at = datetime.now(UTC) - timedelta(hours=4, minutes=30)
        hourly = {"every": "1h", "misfire": "latest"}
        await bell.schedule(
            {"kind": "sales"}, to="handler:reports", at=started_at, repeat=hourly, id="sales", key="sales"
        )
        late = await asyncio.wait_for(rang.get(), timeout=30)
        print(f"only the latest rang: number {late.number} of {late.id}")

        # All have the same key, so they are delivered one after the other, after the report that was just delivered.
        filled = await bell.backfill("sales", from_=started_at, until=started_at + timedelta(hours=2))
        for _ in filled.ids:
            await asyncio.wait_for(rang.get(), timeout=30)
        print(f"backfilled {filled.scheduled} reports")

        seen = await bell.get("sales")
        print(f"counters: {dict(seen.counters or {})}")

        paused = await bell.pause("sales", note="until the numbers are right")
        print(f"sales: {paused.status}, {(paused.paused or {})['note']}")
        resumed = await bell.resume("sales")
        print(f"sales: {resumed.status}")


if __name__ == "__main__":
    asyncio.run(main())
