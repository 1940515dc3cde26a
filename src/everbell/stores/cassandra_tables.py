"""Making the tables of a store or log in Cassandra, also where many want to make them at once.

Cassandra changes a schema without a lock. Where two of its nodes are told to make the same table at the same time, each
makes one of its own; in the end one of the two is forgotten, with all that was written to it. `IF NOT EXISTS` does not
help, for neither has heard of the other's. But a table is what its id says, and an id can be given. So there is a table
of seeds: whoever wants tables puts a random seed there, by a lightweight transaction, or finds another's, and all ids
follow from it. Then all of them make the same tables, as often as they like. The others leave it to the one whose seed
it is as long as that gets on, for it is quicker then; nothing depends on it.

The table of seeds itself has an id that follows from its name alone. The others must not, or what a node kept of a
table that was dropped while it was away would count in a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from importlib.resources import files
from typing import TypeVar

from everbell.entropy import Entropy
from everbell.errors import StoreUnusable
from everbell.stores.cassandra_address import Address
from everbell.stores.cassandra_failures import is_missing
from everbell.stores.cassandra_link import Link

T = TypeVar("T")

KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{}'"

_RETRY_S = 0.5
_KNOWN_S = 300.0
"""How long it may take until tables are made, and all nodes of Cassandra know of them."""
_TURN_S = 5.0
"""How long somebody else may take for a table."""

_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{}'"
_SEEDS = "CREATE TABLE IF NOT EXISTS {}.seeds (tables text PRIMARY KEY, seed blob)"
_PROPOSE = "INSERT INTO {}.seeds (tables, seed) VALUES (?, ?) IF NOT EXISTS"
_AGREED = "SELECT seed FROM {}.seeds WHERE tables = ?"


async def with_tables(
    open: Callable[[], Awaitable[T]], address: Address, package: str, file: str, entropy: Entropy
) -> T:
    """What `open` returns. If that finds tables missing, those of a file are made before."""
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
        if not has_all:  # Some node has not heard of all of them yet.
            await asyncio.sleep(_RETRY_S)
        has_all = False


async def make_tables(address: Address, package: str, file: str, entropy: Entropy) -> None:
    """Make what is missing of a keyspace and of the tables in a file."""
    link = Link(address, keyspace=False, briefly=True)
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


async def _make_keyspace(link: Link, address: Address) -> None:
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


async def _missing(link: Link, names: Iterable[str]) -> list[str]:
    have = {row[0] for row in await link.run(_TABLES.format(link.address.keyspace))}
    return [name for name in names if name not in have]


async def agree(link: Link, tables: str, entropy: Entropy) -> tuple[bytes, bool]:
    """The seed of some tables, and whether it is ours."""
    keyspace = link.address.keyspace
    if await _missing(link, ["seeds"]):
        await link.run(_with_id(_SEEDS.format(keyspace), id_of("seeds", keyspace.encode())))
    # A plain look first, for transactions that meet hold each other up.
    if found := await link.ask(_AGREED.format(keyspace), tables):
        return found[0][0], False
    own = entropy.nonce()
    is_ours, found = await link.decide([(_PROPOSE.format(keyspace), (tables, own))])
    return (own, True) if is_ours else (found[0][1], False)


def id_of(name: str, seed: bytes) -> str:
    """The id of a table, in the form of a UUID."""
    digits = blake2b(name.encode(), key=seed, digest_size=16).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _texts_of(script: str, keyspace: str) -> dict[str, str]:
    """The statements of a script, by the names of the tables that they make."""
    texts: dict[str, str] = {}
    for text in filter(None, map(str.strip, script.split(";\n"))):
        start, made, rest = text.partition("CREATE TABLE IF NOT EXISTS ")
        texts[rest.split(None, 1)[0]] = f"{start}{made}{keyspace}.{rest}"
    return texts


def _with_id(text: str, table_id: str) -> str:
    return f"{text} {'AND' if ') WITH ' in text else 'WITH'} id = '{table_id}'"
