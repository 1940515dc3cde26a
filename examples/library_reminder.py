"""Everbell inside a program: remind users later, from a store that survives a restart.

Two runs share one directory. The first schedules a reminder and ends before its time; the second finds the reminder in
the store and delivers it. The program needs no other process.

    python examples/library_reminder.py
"""

from __future__ import annotations

import asyncio
import tempfile

from everbell import Everbell, Occurrence


async def first_run(store: str) -> None:
    async with Everbell(store) as bell:
        scheduled = await bell.schedule({"user": 7, "text": "stretch"}, to="handler:reminders", in_="2s", key="user-7")
        print(f"first run: {scheduled.status}, and the program ends")


async def second_run(store: str) -> None:
    bell = Everbell(store)
    reminded = asyncio.Event()

    # Register handlers before the start: events that are already due are delivered at once.
    @bell.on("reminders")
    async def remind(event: Occurrence) -> None:
        print(f"second run: user {event.payload['user']}, {event.payload['text']}! (attempt {event.attempt})")
        reminded.set()

    async with bell:
        await asyncio.wait_for(reminded.wait(), timeout=30)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = f"rocksdb:{directory}/everbell-data"
        asyncio.run(first_run(store))
        asyncio.run(second_run(store))


if __name__ == "__main__":
    main()
