"""Cancel is exact, and a change can name the version that it changes.

Three price changes are scheduled for midnight. The program cancels one and postpones another. A second change of the
postponed one names its old version and is refused.

    python examples/cancel_and_reschedule.py
"""

from __future__ import annotations

import asyncio

from everbell import Everbell, Occurrence
from everbell.errors import Conflict, VersionMismatch


async def main() -> None:
    bell = Everbell("memory:")
    changed: asyncio.Queue[str] = asyncio.Queue()

    @bell.on("prices")
    async def change_price(event: Occurrence) -> None:
        await changed.put(event.payload["article"])

    async with bell:
        for article in ("shoes", "hats", "gloves"):
            await bell.schedule({"article": article}, to="handler:prices", in_="1500ms", id=article, tags=["midnight"])

        cancelled = await bell.cancel("hats")
        print(f"hats: {cancelled.status}")

        seen = await bell.get("gloves")
        later = await bell.reschedule("gloves", in_="2500ms", version=seen.version)
        print(f"gloves: put off, version {seen.version} became {later.version}")
        try:
            await bell.reschedule("gloves", in_="1ms", version=seen.version)
        except VersionMismatch as refusal:
            print(f"gloves: refused, {refusal}")

        first = await asyncio.wait_for(changed.get(), timeout=30)
        second = await asyncio.wait_for(changed.get(), timeout=30)
        print(f"delivered: {first}, then {second}, and no hats" if changed.empty() else "hats were delivered!")

        try:
            await bell.cancel("shoes")
        except Conflict as refusal:
            print(f"shoes: too late, {refusal}")


if __name__ == "__main__":
    asyncio.run(main())
