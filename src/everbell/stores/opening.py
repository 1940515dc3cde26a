"""Opening a store: waiting for its database, and checking that this version can use the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from everbell.errors import StoreUnavailable, StoreUnusable

PARTITIONS_MAX = 0xFFFF
PARTITIONS = 256
"""How many partitions a store gets if the caller names no number."""

_RETRY_S = 0.25

T = TypeVar("T")


@dataclass(frozen=True)
class StoreShape:
    """The facts about an open store."""

    partitions: int
    epoch: int
    datacenters: int = 1


def open_patiently(attempt: Callable[[], Coroutine[Any, Any, T]], patience_s: float) -> T:
    """Repeat an attempt to open a store while the database is away, for about `patience_s`.

    Stores are opened by plain calls, so this runs in a thread with its own loop.
    """
    with ThreadPoolExecutor(1, "everbell-open") as thread:
        return thread.submit(asyncio.run, _repeat(attempt, patience_s)).result()


async def _repeat(attempt: Callable[[], Coroutine[Any, Any, T]], patience_s: float) -> T:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while True:
        began_s = loop.time()
        try:
            return await attempt()
        except StoreUnavailable:
            # An attempt that began in time may end late because it made progress: making tables takes a while.
            if began_s + _RETRY_S > end_s:
                raise
            await asyncio.sleep(_RETRY_S)


def partitions_for(wanted: int | None) -> int:
    """The number of partitions of a new store. Raises `StoreUnusable`."""
    partitions = PARTITIONS if wanted is None else wanted
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise StoreUnusable(f"a store has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
    return partitions


def check_format(name: str, format: int, newest: int) -> None:
    """Raise `StoreUnusable` if a newer version wrote the store."""
    if format > newest:
        raise StoreUnusable(
            f"{name} was written by a newer Everbell (format {format}, this one reads up to {newest}): "
            "install a newer version"
        )


def check_shape(name: str, format: int, newest: int, partitions: int, wanted: int | None, another: str) -> None:
    """Raise `StoreUnusable` if a newer version wrote the store, or it has another number of partitions."""
    check_format(name, format, newest)
    if wanted is not None and partitions != wanted:
        raise StoreUnusable(
            f"{name} was made with {partitions} partitions, which cannot change: "
            f"start with that number, or name another {another} for one with {wanted}"
        )
