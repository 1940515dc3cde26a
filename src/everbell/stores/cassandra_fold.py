"""Putting together what writers that are gone have counted, so that rows do not pile up with every start.

Each process counts in rows of its own, and a row may only be added to another's if it changes no more. So a writer that
holds no partition, and has written nothing for an hour, is ended first. What it counted goes into the rows of the owner
of partition 0, and its own rows go, in one operation. That operation counts only as long as the partition is held, and
whoever takes it makes the last operation of the one before once more: so nothing is ever added twice, whenever it ends.
What is left of an ended writer is one row, which tells a process that was only asleep what became of it; it goes after
a month.
"""

from __future__ import annotations

import msgspec

from everbell.core.time import DAY_MS, HOUR_MS
from everbell.stores.cassandra_fence import FENCE
from everbell.stores.cassandra_journal import ENDED, Journal, fence_of
from everbell.stores.cassandra_link import Link
from everbell.stores.cassandra_rows import RowChange
from everbell.stores.rows import Tally, added

FOLDER = 0
"""The partition whose owner does it."""
FOLD_MS = HOUR_MS
"""How often to look, and for how long a writer that is gone has been silent."""

_KEPT_MS = 30 * DAY_MS
_AT_ONCE = 16

_WRITERS = (
    "SELECT writer, version, writetime(op), writetime(version) FROM writers WHERE store = ? LIMIT 10000 ALLOW FILTERING"
)
_FORGET = "DELETE FROM writers WHERE store = ? AND writer = ? IF version = ?"
_COUNTS = "SELECT tenant, tally FROM counts WHERE store = ? AND writer = ?"


async def fold(
    link: Link, journal: Journal, tallies: dict[str, Tally], now: int
) -> tuple[list[RowChange], dict[str, Tally]]:
    """The row changes that put the counts of writers that are gone to those of this one, and what those are then."""
    store = link.address.store
    holders = {writer for _, writer in fence_of(await link.see(FENCE, store)).values()}
    changes: list[RowChange] = []
    sums: dict[str, Tally] = {}
    for writer in await _gone(link, journal, holders, now):
        if not await journal.end(writer):
            continue
        rows = await link.ask(_COUNTS, store, writer)
        for tenant, tally in rows:
            sums[tenant] = added(sums.get(tenant) or tallies.get(tenant), msgspec.msgpack.decode(tally))
        if rows:
            changes.append(("c", writer))
    changes += [("C", journal.writer, tenant, msgspec.msgpack.encode(tally)) for tenant, tally in sums.items()]
    return changes, sums


async def _gone(link: Link, journal: Journal, holders: set[int | None], now: int) -> list[int]:
    """Some writers that are gone and may have left something. Those that were ended long ago are forgotten."""
    store = link.address.store
    gone: list[int] = []
    for writer, version, wrote_us, changed_us in await link.ask(_WRITERS, store):
        if writer in holders or writer == journal.writer or now - (wrote_us or 0) // 1_000 < FOLD_MS:
            continue
        if version != ENDED:
            gone.append(writer)
        elif await link.ask(_COUNTS, store, writer):
            gone.append(writer)  # Whoever ended it ended, too.
        elif now - changed_us // 1_000 > _KEPT_MS:
            await link.decide([(_FORGET, (store, writer, ENDED))])
        if len(gone) == _AT_ONCE:
            break
    return gone
