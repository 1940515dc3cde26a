"""Reminders that escalate: page the engineer on call, then a colleague, then the manager, until one acknowledges.

An alert is three events with one tag, each with its own time. The acknowledgement cancels all events with the tag, so
the remaining pages are never sent. The program keeps no state between them: a restart in the middle changes nothing.

    python examples/escalation.py
"""

from __future__ import annotations

import asyncio

from everbell import Everbell, Occurrence

CHAIN = {"ada": "100ms", "grace": "600ms", "the manager": "60s"}


async def main() -> None:
    bell = Everbell("memory:")
    acknowledged = asyncio.Event()

    @bell.on("pager")
    async def page(event: Occurrence) -> None:
        who, alert = event.payload["who"], event.payload["alert"]
        print(f"{alert}: paging {who}")
        if who == "grace":  # Ada sleeps; Grace wakes up.
            acknowledged.set()

    async with bell:
        for who, after in CHAIN.items():
            payload = {"alert": "disk-full", "who": who}
            await bell.schedule(payload, to="handler:pager", in_=after, id=f"disk-full-{who}", tags=["disk-full"])
        await asyncio.wait_for(acknowledged.wait(), timeout=30)
        await bell.cancel_matching(tag="disk-full")
        last = await bell.get("disk-full-the manager")
    print(f"disk-full: grace takes it; the page to the manager is {last.status}")


if __name__ == "__main__":
    asyncio.run(main())
