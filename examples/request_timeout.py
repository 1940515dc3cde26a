"""Timing out requests on an asynchronous bus.

The sender of a request schedules its timeout first, under an id that follows from the request. The receiver of the
answer closes the request and cancels the timeout, so that the timeout is not delivered at all.

The state of the request itself decides whether the answer or the timeout came first: a timeout that is being delivered
at the moment of the cancel cannot be called back, and finds the request closed.

    python examples/request_timeout.py
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from everbell import Everbell, Occurrence
from everbell.errors import Conflict

TIMEOUT = "1s"
REQUESTS = {"quote-1": "answered", "quote-2": "never answered", "quote-3": "answered", "quote-4": "answered too late"}


async def main() -> None:
    bell = Everbell("memory:")
    open_requests: set[str] = set()
    timed_out = {name: asyncio.Event() for name in REQUESTS}

    @bell.on("timeouts")
    async def on_timeout(event: Occurrence) -> None:
        name = event.payload["request"]
        if name in open_requests:
            open_requests.remove(name)
            print(f"{name}: no answer in time")
            timed_out[name].set()

    async def on_answer(name: str) -> None:
        if name not in open_requests:
            print(f"{name}: an answer, but too late")
            return
        open_requests.remove(name)
        with suppress(Conflict):  # The timeout was just delivered, and found the request closed.
            await bell.cancel(f"{name}-timeout")
        print(f"{name}: answered")

    async def request(name: str, fate: str) -> None:
        # The timeout comes first: a crash in between leaves a superfluous timeout, never a request without a timeout.
        await bell.schedule({"request": name}, to="handler:timeouts", in_=TIMEOUT, id=f"{name}-timeout")
        open_requests.add(name)
        if fate != "answered":
            await asyncio.wait_for(timed_out[name].wait(), timeout=30)
        if fate != "never answered":
            await on_answer(name)

    async with bell:
        await asyncio.gather(*(request(name, fate) for name, fate in REQUESTS.items()))
        statuses = [(await bell.get(f"{name}-timeout")).status for name in ("quote-1", "quote-3")]
    print(f"timed out: {', '.join(name for name in REQUESTS if timed_out[name].is_set())}")
    print(f"the timeouts of quote-1 and quote-3: {', '.join(statuses)}")


if __name__ == "__main__":
    asyncio.run(main())
