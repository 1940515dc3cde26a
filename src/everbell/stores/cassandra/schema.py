"""Opening a Cassandra store: create it, or check that this version can use it. A newer store is refused."""

from __future__ import annotations

from functools import partial

from everbell.entropy import Entropy
from everbell.errors import StoreUnusable
from everbell.stores.cassandra.address import CassandraAddress
from everbell.stores.cassandra.fence import FENCE
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.tables import KEYSPACE, with_tables
from everbell.stores.opening import StoreShape, check_shape, open_patiently, partitions_for

FORMAT = 1  # The format that this version writes, and the newest that it reads.
OPEN_S = 30.0  # How long to wait for servers that are starting, too.

_MAKE = "INSERT INTO stores (store, format, partitions, created_at, blocks) VALUES (?, ?, ?, ?, -1) IF NOT EXISTS"
_SHAPE = "SELECT format, partitions FROM stores WHERE store = ?"


def prepare(
    address: CassandraAddress, partitions: int | None, created_at: int, entropy: Entropy, patience_s: float = OPEN_S
) -> StoreShape:
    """Open the store, or create it. Raises `StoreUnusable`, `StoreUnavailable` and others."""
    package, file = "everbell.stores.cassandra", f"schema_{FORMAT}.cql"
    attempt = partial(_open, address, partitions, created_at)
    return open_patiently(lambda: with_tables(attempt, address, package, file, entropy), patience_s)


async def _count_datacenters(link: CassandraSession, address: CassandraAddress) -> int:
    """How many datacentres have copies of the keyspace. Raises `StoreUnusable` if this node's datacentre has none."""
    replication = dict((await link.run(KEYSPACE.format(address.keyspace)))[0][0])
    if "NetworkTopology" not in replication.pop("class"):
        return 1
    if address.datacenter and address.datacenter not in replication:
        raise StoreUnusable(
            f"{address.name} has no copies in the datacentre {address.datacenter!r}, only in "
            f"{', '.join(sorted(replication))}: correct datacenter= in the URL, or ALTER KEYSPACE"
        )
    return len(replication)


async def _open(address: CassandraAddress, partitions: int | None, created_at: int) -> StoreShape:
    link = CassandraSession(address, briefly=True)
    try:
        found = await link.see(_SHAPE, address.store)
        if not found:
            wanted = partitions_for(partitions)
            await link.decide([(_MAKE, (address.store, FORMAT, wanted, created_at))])
            found = await link.see(_SHAPE, address.store)
        [(number, count)] = found
        check_shape(address.name, number, FORMAT, count, partitions, "store=")
        epochs = [row[1] or 0 for row in await link.see(FENCE, address.store)]
        return StoreShape(count, max(epochs, default=0), await _count_datacenters(link, address))
    finally:
        await link.close()
