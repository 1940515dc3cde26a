"""Session timers: every activity of a user postpones the end of the session; an idle session ends.

Each session has one event, under the session's id. A refresh reschedules it, so there is one event however often the
user clicks. When it is delivered, the user was idle for the whole time. A late refresh is refused, which tells the
program that the session is over.

    python examples/session_refresh.py
"""

from __future__ import annotations

import asyncio

from everbell import Everbell, Occurrence
from everbell.errors import Conflict

IDLE = "800ms"


async def main() -> None:
    bell = Everbell("memory:")
    ended: dict[str, asyncio.Event] = {"ada": asyncio.Event(), "grace": asyncio.Event()}
    order: list[str] = []

    @bell.on("sessions")
    async def end(event: Occurrence) -> None:
        user = event.payload["user"]
        order.append(user)
        print(f"{user}: signed out, nothing heard for {IDLE}")
        ended[user].set()

    async def refresh(user: str) -> bool:
        try:
            await bell.reschedule(f"session-{user}", in_=IDLE)
        except Conflict:
            return False
        return True

    async with bell:
        for user in ended:
            await bell.schedule({"user": user}, to="handler:sessions", in_=IDLE, id=f"session-{user}")
        refreshes = 0
        while not ended["ada"].is_set():  # Grace is busy, Ada went for lunch.
            refreshes += await refresh("grace")
            await asyncio.sleep(0.1)
        print(f"grace: still there after {'many' if refreshes > 3 else refreshes} refreshes")
        await asyncio.wait_for(ended["grace"].wait(), timeout=30)
        print(f"grace: a refresh now is {'taken' if await refresh('grace') else 'refused'}")
    print(f"ended in the order: {', '.join(order)}")


if __name__ == "__main__":
    asyncio.run(main())
