"""Opening a Cassandra store: making its keyspace and tables, or making sure that they are ours and can be read.

Cassandra changes a schema without a lock, so whoever finds something missing makes it if nobody else does, and looks
again. A store that was written by a newer release is refused.

It is done before there is anything else to do, in a thread with a loop of its own, for stores are opened by plain
calls.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files

from everbell.errors import StoreUnavailable, StoreUnusable
from everbell.stores.cassandra_address import Address
from everbell.stores.cassandra_failures import is_missing
from everbell.stores.cassandra_fence import FENCE
from everbell.stores.cassandra_link import Link

FORMAT = 1
"""What this version writes, and the highest that it reads."""
PARTITIONS_MAX = 0xFFFF
OPEN_S = 30.0
"""How long to wait for servers that are not there yet, as when all are started together."""

_RETRY_S = 0.5
_KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{}'"
_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{}'"
_MAKE = "INSERT INTO stores (store, format, partitions, created_at, blocks) VALUES (?, ?, ?, ?, -1) IF NOT EXISTS"
_SHAPE = "SELECT format, partitions FROM stores WHERE store = ?"


@dataclass(frozen=True)
class Shape:
    """What is known of a store when it is open."""

    partitions: int
    epoch: int
    datacenters: int


def prepare(address: Address, partitions: int | None, created_at: int, patience_s: float = OPEN_S) -> Shape:
    """Bring the store up to date, or make it. Raises `StoreUnusable`, `StoreUnavailable` and others."""
    with ThreadPoolExecutor(1, "everbell-open") as thread:
        return thread.submit(asyncio.run, _prepare(address, partitions, created_at, patience_s)).result()


async def _prepare(address: Address, partitions: int | None, created_at: int, patience_s: float) -> Shape:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while True:
        try:
            try:
                return await _open(address, partitions, created_at)
            except StoreUnusable as unusable:
                if not is_missing(unusable):
                    raise
            await make_tables(address, "everbell.stores", f"cassandra_{FORMAT}.cql")
            return await _open(address, partitions, created_at)
        except StoreUnavailable:
            if loop.time() + _RETRY_S > end_s:
                raise
            await asyncio.sleep(_RETRY_S)


async def make_tables(address: Address, package: str, file: str) -> None:
    """Make what is missing of a keyspace and of the tables in a file."""
    link = Link(address, keyspace=False, briefly=True)
    try:
        await _make_keyspace(link, address)
        texts = [text.strip() for text in files(package).joinpath(file).read_text().split(";\n") if text.strip()]
        have = {row[0] for row in await link.run(_TABLES.format(address.keyspace))}
        for text in texts:
            _, _, rest = text.partition("CREATE TABLE IF NOT EXISTS ")
            if rest.split(None, 1)[0] not in have:
                await link.run(text.replace("IF NOT EXISTS ", f"IF NOT EXISTS {address.keyspace}.", 1))
    finally:
        await link.close()


async def _make_keyspace(link: Link, address: Address) -> None:
    if await link.run(_KEYSPACE.format(address.keyspace)):
        return
    [(local,)] = await link.run("SELECT data_center FROM system.local")
    copies = dict(address.replication) or {address.datacenter or local: 1}
    listed = ", ".join(f"'{name}': {number}" for name, number in copies.items())
    try:
        await link.run(
            f"CREATE KEYSPACE IF NOT EXISTS {address.keyspace} "
            f"WITH replication = {{'class': 'NetworkTopologyStrategy', {listed}}}"
        )
    except StoreUnusable as refused:
        raise StoreUnusable(f"{refused} (or make the keyspace {address.keyspace} beforehand)") from refused


async def _count_datacenters(link: Link, address: Address) -> int:
    """In how many datacentres the keyspace is. Raises `StoreUnusable` when it is not in ours."""
    replication = dict((await link.run(_KEYSPACE.format(address.keyspace)))[0][0])
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
