"""Timing out requests on an asynchronous bus.

Whoever sends a request schedules its timeout first, under an id that follows from the request. Whoever receives the
answer cancels the timeout. Once the cancel is acknowledged, the timeout cannot ring any more; if it came too late, the
cancel says so, and the answer is known to be late. So every request ends in exactly one of two ways.

    python examples/request_timeout.py
"""

from __future__ import annotations

import asyncio

from everbell import Everbell, Occurrence
from everbell.errors import Conflict

TIMEOUT = "500ms"
ANSWERED_AFTER_S = {"quote-1": 0.05, "quote-2": None, "quote-3": 0.1, "quote-4": 1.0}
"""How long the other side takes for each request; None: it never answers."""


async def main() -> None:
    bell = Everbell("memory:")
    timed_out: asyncio.Queue[str] = asyncio.Queue()

    @bell.on("timeouts")
    async def time_out(event: Occurrence) -> None:
        print(f"{event.payload['request']}: no answer in time")
        await timed_out.put(event.payload["request"])

    async def request(name: str, answered_after_s: float | None) -> None:
        # First the timeout, then the request: a crash in between leaves a timeout too many, never a request without.
        await bell.schedule({"request": name}, to="handler:timeouts", in_=TIMEOUT, id=f"{name}-timeout")
        if answered_after_s is not None:
            await asyncio.sleep(answered_after_s)  # The bus, and the other side.
            await on_answer(name)

    async def on_answer(name: str) -> None:
        try:
            await bell.cancel(f"{name}-timeout")
        except Conflict:
            print(f"{name}: an answer, but too late")
        else:
            print(f"{name}: answered")

    async with bell:
        await asyncio.gather(*(request(name, after_s) for name, after_s in ANSWERED_AFTER_S.items()))
        late = {await asyncio.wait_for(timed_out.get(), timeout=30) for _ in range(2)}
    print(f"timed out: {', '.join(sorted(late))}")


if __name__ == "__main__":
    asyncio.run(main())
