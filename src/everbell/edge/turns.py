"""Long lists that are made some items at a time, so that a large request does not stop the loop for all others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


async def in_turns(items: Iterable[T | None], per_turn: int) -> list[T]:
    """All items that are not None. Other tasks run after every `per_turn` of them, and after every None."""
    made: list[T] = []
    left = per_turn
    for item in items:
        if item is not None:
            made.append(item)
            left -= 1
        if item is None or not left:
            left = per_turn
            await asyncio.sleep(0)
    return made
