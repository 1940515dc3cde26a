"""Events of one key are delivered one at a time, in order; a failing event delays only its own key.

There are two orders with three steps each. The first step of order 17 fails once. The next steps of order 17 wait for
it, although they are due; order 18 is not affected.

    python examples/ordered_by_key.py
"""

from __future__ import annotations

import asyncio

from everbell import Everbell, Occurrence

STEPS = ("pack", "ship", "bill")
ORDERS = ("order-17", "order-18")


async def main() -> None:
    bell = Everbell("memory:")
    done: dict[str, list[str]] = {order: [] for order in ORDERS}
    finished = asyncio.Event()

    @bell.on("orders")
    async def advance(event: Occurrence) -> None:
        order, step = str(event.key), event.payload["step"]
        if order == "order-17" and step == "pack" and event.attempt == 1:
            print("order-17: pack fails, and is tried again in a moment")
            raise RuntimeError("the packing station is jammed")
        done[order].append(step)
        print(f"{order}: {step}")
        if sum(map(len, done.values())) == len(STEPS) * len(ORDERS):
            finished.set()

    async with bell:
        for number, step in enumerate(STEPS):
            for order in ORDERS:
                await bell.schedule(
                    {"step": step},
                    to="handler:orders",
                    key=order,
                    in_=f"{100 + 10 * number}ms",
                    retry={"backoff": "500ms"},
                )
        await asyncio.wait_for(finished.wait(), timeout=30)
    for order, steps in done.items():
        print(f"{order} in order: {', '.join(steps)}")


if __name__ == "__main__":
    asyncio.run(main())
