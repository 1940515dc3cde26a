"""Reconciling the pieces of a batch at the end of its SLA.

A batch of payments goes to a bank, and the answers come back one by one, in any order, or not at all. One event per
batch, due at the end of the SLA, checks which answers have arrived. When the last answer arrives early, the program
brings the check forward. Rescheduling is exact, so the check runs once, either early or at the end.

    python examples/batch_reconciliation.py
"""

from __future__ import annotations

import asyncio

from everbell import Everbell, Occurrence

SLA = "1500ms"
BATCHES = {"monday": ["p1", "p2", "p3"], "tuesday": ["p4", "p5", "p6"]}
ANSWERED = {"monday": ["p3", "p1", "p2"], "tuesday": ["p5", "p4"]}


async def main() -> None:
    bell = Everbell("memory:")
    missing = {batch: set(pieces) for batch, pieces in BATCHES.items()}
    closed: asyncio.Queue[str] = asyncio.Queue()

    @bell.on("reconcile")
    async def reconcile(event: Occurrence) -> None:
        batch = event.payload["batch"]
        left = sorted(missing[batch])
        print(f"{batch}: {'complete' if not left else 'at the end of the SLA, missing ' + ', '.join(left)}")
        await closed.put(batch)

    async def on_answer(batch: str, piece: str) -> None:
        missing[batch].discard(piece)
        if not missing[batch]:
            await bell.reschedule(f"{batch}-sla", in_="0s")

    async with bell:
        for batch in BATCHES:
            # With this key, answers that are events themselves and the check would be delivered one at a time.
            await bell.schedule({"batch": batch}, to="handler:reconcile", in_=SLA, id=f"{batch}-sla", key=batch)
        for batch, pieces in ANSWERED.items():
            for piece in pieces:
                await on_answer(batch, piece)
        order = [await asyncio.wait_for(closed.get(), timeout=30) for _ in BATCHES]
    print(f"closed in the order: {', '.join(order)}")


if __name__ == "__main__":
    asyncio.run(main())
