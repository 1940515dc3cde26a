"""Counts how often other tasks have their turn while a coroutine runs: blocking, on any machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def turns_beside(work: Awaitable[T]) -> tuple[T, int]:
    """The result of `work`, and the number of turns that another task had meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counter = asyncio.ensure_future(count())
    try:
        return await work, turns
    finally:
        counter.cancel()
