"""Opening a Cassandra store: making it where it is missing, or making sure that it is ours and can be read.

A store that was written by a newer release is refused.

It is done before there is anything else to do, in a thread with a loop of its own, for stores are opened by plain
calls.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from everbell.entropy import Entropy
from everbell.errors import StoreUnavailable, StoreUnusable
from everbell.stores.cassandra_address import Address
from everbell.stores.cassandra_fence import FENCE
from everbell.stores.cassandra_link import Link
from everbell.stores.cassandra_tables import KEYSPACE, with_tables

FORMAT = 1
"""What this version writes, and the highest that it reads."""
PARTITIONS_MAX = 0xFFFF
OPEN_S = 30.0
"""How long to wait for servers that are not there yet, as when all are started together."""

_RETRY_S = 0.5
_MAKE = "INSERT INTO stores (store, format, partitions, created_at, blocks) VALUES (?, ?, ?, ?, -1) IF NOT EXISTS"
_SHAPE = "SELECT format, partitions FROM stores WHERE store = ?"


@dataclass(frozen=True)
class Shape:
    """What is known of a store when it is open."""

    partitions: int
    epoch: int
    datacenters: int


def prepare(
    address: Address, partitions: int | None, created_at: int, entropy: Entropy, patience_s: float = OPEN_S
) -> Shape:
    """Bring the store up to date, or make it. Raises `StoreUnusable`, `StoreUnavailable` and others."""
    with ThreadPoolExecutor(1, "everbell-open") as thread:
        return thread.submit(asyncio.run, _prepare(address, partitions, created_at, entropy, patience_s)).result()


async def _prepare(
    address: Address, partitions: int | None, created_at: int, entropy: Entropy, patience_s: float
) -> Shape:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while True:
        began_s = loop.time()
        try:
            return await with_tables(
                partial(_open, address, partitions, created_at),
                address,
                "everbell.stores",
                f"cassandra_{FORMAT}.cql",
                entropy,
            )
        except StoreUnavailable:
            if began_s >= end_s:
                raise  # Else it took so long because it got on: making tables does.
            await asyncio.sleep(_RETRY_S)


async def _count_datacenters(link: Link, address: Address) -> int:
    """In how many datacentres the keyspace is. Raises `StoreUnusable` when it is not in ours."""
    replication = dict((await link.run(KEYSPACE.format(address.keyspace)))[0][0])
    if "NetworkTopology" not in replication.pop("class"):
        return 1
    if address.datacenter and address.datacenter not in replication:
        raise StoreUnusable(
            f"{address.name} has no copies in the datacentre {address.datacenter!r}, only in "
            f"{', '.join(sorted(replication))}: correct datacenter= in the URL, or ALTER KEYSPACE"
        )
    return len(replication)


async def _open(address: Address, partitions: int | None, created_at: int) -> Shape:
    link = Link(address, briefly=True)
    try:
        found = await link.see(_SHAPE, address.store)
        if not found:
            wanted = 256 if partitions is None else partitions
            if not 1 <= wanted <= PARTITIONS_MAX:
                raise StoreUnusable(f"a store has 1 to {PARTITIONS_MAX} partitions, not {wanted}")
            await link.decide([(_MAKE, (address.store, FORMAT, wanted, created_at))])
            found = await link.see(_SHAPE, address.store)
        [(number, count)] = found
        if number > FORMAT:
            raise StoreUnusable(
                f"{address.name} was written by a newer Everbell (format {number}, this one reads up to {FORMAT}): "
                "install a newer version"
            )
        if partitions is not None and count != partitions:
            raise StoreUnusable(
                f"{address.name} was made with {count} partitions, which cannot change: "
                f"start with that number, or name another store= for one with {partitions}"
            )
        epochs = [row[1] or 0 for row in await link.see(FENCE, address.store)]
        return Shape(count, max(epochs, default=0), await _count_datacenters(link, address))
    finally:
        await link.close()
