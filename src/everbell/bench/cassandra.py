"""Everbell on Cassandra: bulk ingest and the whole path, beside what a bare driver writes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Baseline, Figure
from everbell.bench.goals import CASSANDRA_INGEST, CASSANDRA_WHOLE
from everbell.bench.ingest import ingest_into
from everbell.bench.plans import CopyPlan, Sent
from everbell.bench.scene import PATIENCE_S, Scene, batches
from everbell.bench.stage import Stage
from everbell.bench.whole import in_process
from everbell.errors import StoreError

_KEYSPACE = "everbell_bench"


def cassandra(scene: Scene) -> list[Figure]:
    """Into a keyspace of its own, which goes afterwards."""
    with cassandra_stores(scene) as store:
        count, size = batches(scene.scale.whole)
        bare = Baseline("a bare driver, the same rows", _bare(scene, store("bare"), count, size, finish=False).rate)
        ingested = ingest_into(scene, CASSANDRA_INGEST, store("ingest"), (bare,), count, size)
        both = Baseline(
            "a bare driver, writing and deleting", _bare(scene, store("bare"), count, size, finish=True).rate
        )
        return [ingested, in_process(scene, CASSANDRA_WHOLE, count, size, both, store("whole"))]


@contextmanager
def cassandra_stores(scene: Scene) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a store by its name; all of them go afterwards."""
    if scene.cassandra is None:
        raise BenchFailed("name a cluster for it: --cassandra URL")
    url = re.sub(r"/[a-z0-9_]*(\?|$)", rf"/{_KEYSPACE}\1", scene.cassandra, count=0)
    url += "&" if "?" in url else "?"
    asyncio.run(_remove(url))
    try:
        yield lambda name: f"{url}store={name}"
    finally:
        asyncio.run(_remove(url))


def _bare(scene: Scene, url: str, count: int, size: int, *, finish: bool) -> Sent:
    with Stage() as stage:
        partner = stage.partner("everbell.bench.bare_cassandra", CopyPlan(url, count, size, finish))
        return Sent(**partner.hear(10 * PATIENCE_S, scene.progress("bare Cassandra", count * size)))


async def _remove(url: str) -> None:
    try:
        from everbell.stores.cassandra_address import read_address
        from everbell.stores.cassandra_link import Link
    except ImportError as error:
        raise BenchFailed("Cassandra needs a driver: pip install 'everbell[cassandra]'") from error
    try:
        link = Link(read_address(url.rstrip("?&")), keyspace=False, briefly=True)
        await link.run(f"DROP KEYSPACE IF EXISTS {_KEYSPACE}")
        await link.close()
    except StoreError as error:
        raise BenchFailed(f"Cassandra cannot be used: {error}") from error
