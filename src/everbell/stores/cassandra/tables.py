"""Creating the tables of a store or log in Cassandra, even if many processes create them at once.

Cassandra changes a schema without a lock. If two of its nodes create the same table at the same time, each creates its
own, and one of the two is dropped later, with all its rows. `IF NOT EXISTS` does not help, because neither node knows
of the other table. But a table is identified by its id, and `CREATE TABLE` can set the id. So there is a table of
seeds: a process inserts a random seed there by a lightweight transaction, or finds one, and derives all ids from it.
Then all processes create the same tables. The others leave that to the process with the seed while it makes progress,
only because that is faster.

The id of the table of seeds follows from its name alone. For other tables that would be unsafe: a node that was away
while a table was dropped would bring its old rows into the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from importlib.resources import files
from typing import TypeVar

from everbell.entropy import Entropy
from everbell.errors import StoreUnusable
from everbell.stores.cassandra.address import CassandraAddress
from everbell.stores.cassandra.failures import is_missing
from everbell.stores.cassandra.session import CassandraSession

T = TypeVar("T")

KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{}'"

_RETRY_S = 0.5
_KNOWN_S = 300.0  # How long it may take until all nodes of Cassandra know the new tables.
_TURN_S = 5.0  # How long another process may take for a table.

_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{}'"
_SEEDS = "CREATE TABLE IF NOT EXISTS {}.seeds (tables text PRIMARY KEY, seed blob)"
_PROPOSE = "INSERT INTO {}.seeds (tables, seed) VALUES (?, ?) IF NOT EXISTS"
_AGREED = "SELECT seed FROM {}.seeds WHERE tables = ?"


async def with_tables(
    open: Callable[[], Awaitable[T]], address: CassandraAddress, package: str, file: str, entropy: Entropy
) -> T:
    """The result of `open`. If tables are missing, those of a file are created first."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _KNOWN_S
    has_all = True
    while True:
        try:
            if not has_all:
                await make_tables(address, package, file, entropy)
            return await open()
        except StoreUnusable as unusable:
            if not is_missing(unusable) or loop.time() > end_s:
                raise
        if not has_all:  # Some node does not know all tables yet.
            await asyncio.sleep(_RETRY_S)
        has_all = False


async def make_tables(address: CassandraAddress, package: str, file: str, entropy: Entropy) -> None:
    """Create the keyspace and the tables of a file, unless they exist."""
    link = CassandraSession(address, keyspace=False, briefly=True)
    texts = _texts_of(files(package).joinpath(file).read_text(), address.keyspace)
    try:
        await _make_keyspace(link, address)
        seed, is_ours = await agree(link, package, entropy)
        left = await _missing(link, texts)
        while left and not is_ours:
            await asyncio.sleep(_TURN_S)
            before, left = left, await _missing(link, texts)
            is_ours = len(left) == len(before)
        for name in left:
            await link.run(_with_id(texts[name], id_of(name, seed)))
    finally:
        await link.close()


async def _make_keyspace(link: CassandraSession, address: CassandraAddress) -> None:
    if await link.run(KEYSPACE.format(address.keyspace)):
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


async def _missing(link: CassandraSession, names: Iterable[str]) -> list[str]:
    have = {row[0] for row in await link.run(_TABLES.format(link.address.keyspace))}
    return [name for name in names if name not in have]


async def agree(link: CassandraSession, tables: str, entropy: Entropy) -> tuple[bytes, bool]:
    """The seed of some tables, and whether this process has proposed it."""
    keyspace = link.address.keyspace
    if await _missing(link, ["seeds"]):
        await link.run(_with_id(_SEEDS.format(keyspace), id_of("seeds", keyspace.encode())))
    # A plain read comes first, because concurrent transactions delay each other.
    if found := await link.ask(_AGREED.format(keyspace), tables):
        return found[0][0], False
    own = entropy.nonce()
    is_ours, found = await link.decide([(_PROPOSE.format(keyspace), (tables, own))])
    return (own, True) if is_ours else (found[0][1], False)


def id_of(name: str, seed: bytes) -> str:
    digits = blake2b(name.encode(), key=seed, digest_size=16).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _texts_of(script: str, keyspace: str) -> dict[str, str]:
    """The statements of a script, by the names of their tables."""
    texts: dict[str, str] = {}
    for text in filter(None, map(str.strip, script.split(";\n"))):
        start, made, rest = text.partition("CREATE TABLE IF NOT EXISTS ")
        texts[rest.split(None, 1)[0]] = f"{start}{made}{keyspace}.{rest}"
    return texts


def _with_id(text: str, table_id: str) -> str:
    return f"{text} {'AND' if ') WITH ' in text else 'WITH'} id = '{table_id}'"
