"""Long lists that are made some items at a time, so that a large request does not stop the loop for all others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


async def in_turns(items: Iterable[T], per_turn: int) -> list[T]:
    """All items. Other tasks run after every `per_turn` of them."""
    source = iter(items)
    made = list(islice(source, per_turn))
    while more := list(islice(source, per_turn)):
        await asyncio.sleep(0)
        made += more
    return made
