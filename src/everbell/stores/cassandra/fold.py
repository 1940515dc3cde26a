"""Adding up the counts of writers that are gone, because every start of a process adds rows.

Each process counts in rows of its own. Counts may only be added to another row when they can no longer change. So a
writer that holds no partition, and has written nothing for an hour, is ended first. Then one operation adds its counts
to the rows of the owner of partition 0, and deletes its own rows. That operation only counts while the partition is
held, and the next owner repeats the last operation of the previous one, so nothing is ever added twice. One row of an
ended writer stays for a month, for a process that was only asleep.
"""

from __future__ import annotations

import msgspec

from everbell.core.time import DAY_MS, HOUR_MS
from everbell.stores.cassandra.fence import FENCE
from everbell.stores.cassandra.journal import ENDED, Journal, fence_of
from everbell.stores.cassandra.rows import RowChange
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.rows import StatusCounts, added

FOLDER = 0  # The owner of this partition adds counts up.
FOLD_MS = HOUR_MS  # How often to look, and how long a writer must have been silent.

_KEPT_MS = 30 * DAY_MS
_AT_ONCE = 16

_WRITERS = (
    "SELECT writer, version, writetime(op), writetime(version) FROM writers WHERE store = ? LIMIT 10000 ALLOW FILTERING"
)
_FORGET = "DELETE FROM writers WHERE store = ? AND writer = ? IF version = ?"
_COUNTS = "SELECT tenant, tally FROM counts WHERE store = ? AND writer = ?"


async def fold(
    link: CassandraSession, journal: Journal, tallies: dict[str, StatusCounts], now: int
) -> tuple[list[RowChange], dict[str, StatusCounts]]:
    """The row changes that add the counts of writers that are gone to those of this writer, and the sums."""
    store = link.address.store
    holders = {writer for _, writer in fence_of(await link.see(FENCE, store)).values()}
    changes: list[RowChange] = []
    sums: dict[str, StatusCounts] = {}
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


async def _gone(link: CassandraSession, journal: Journal, holders: set[int | None], now: int) -> list[int]:
    """Some writers that are gone and may have left rows. Writers that were ended long ago are forgotten."""
    store = link.address.store
    gone: list[int] = []
    for writer, version, wrote_us, changed_us in await link.ask(_WRITERS, store):
        if writer in holders or writer == journal.writer or now - (wrote_us or 0) // 1_000 < FOLD_MS:
            continue
        if version != ENDED:
            gone.append(writer)
        elif await link.ask(_COUNTS, store, writer):
            gone.append(writer)  # The process that ended it has ended before adding its counts.
        elif now - changed_us // 1_000 > _KEPT_MS:
            await link.decide([(_FORGET, (store, writer, ENDED))])
        if len(gone) == _AT_ONCE:
            break
    return gone
