"""Everbell on Cassandra: bulk ingest and the whole path, beside the writes of a bare driver."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Baseline, Figure
from everbell.bench.goals import CASSANDRA_INGEST, CASSANDRA_WHOLE
from everbell.bench.ingest import bare_rows, ingest_into
from everbell.bench.scene import Scene, batches
from everbell.bench.whole import in_process
from everbell.errors import StoreError

_KEYSPACE = "everbell_bench"


def cassandra(scene: Scene) -> list[Figure]:
    """Into a keyspace of its own, which is removed afterwards."""
    with cassandra_stores(scene) as store:
        count, size = batches(scene.scale.whole)
        bare = bare_rows(scene, "Cassandra", count, size, finish=False, url=store("bare"))
        baseline = Baseline("a bare driver, the same rows", bare.rate)
        ingested = ingest_into(scene, CASSANDRA_INGEST, store("ingest"), (baseline,), count, size)
        bare = bare_rows(scene, "Cassandra", count, size, finish=True, url=store("bare"))
        both = Baseline("a bare driver, writing and deleting", bare.rate)
        return [ingested, in_process(scene, CASSANDRA_WHOLE, count, size, both, store("whole"))]


@contextmanager
def cassandra_stores(scene: Scene) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a store by its name; all stores are removed afterwards."""
    if scene.cassandra is None:
        raise BenchFailed("name a cluster for it: --cassandra URL")
    url = re.sub(r"/[a-z0-9_]*(\?|$)", rf"/{_KEYSPACE}\1", scene.cassandra, count=0)
    url += "&" if "?" in url else "?"
    asyncio.run(_remove(url))
    try:
        yield lambda name: f"{url}store={name}"
    finally:
        asyncio.run(_remove(url))


async def _remove(url: str) -> None:
    try:
        from everbell.stores.cassandra.address import read_address
        from everbell.stores.cassandra.session import CassandraSession
    except ImportError as error:
        raise BenchFailed("Cassandra needs a driver: pip install 'everbell[cassandra]'") from error
    try:
        link = CassandraSession(read_address(url.rstrip("?&")), keyspace=False, briefly=True)
        await link.run(f"DROP KEYSPACE IF EXISTS {_KEYSPACE}")
        await link.close()
    except StoreError as error:
        raise BenchFailed(f"Cassandra cannot be used: {error}") from error
