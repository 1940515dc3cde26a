"""Everbell on PostgreSQL: bulk ingest and the whole path, beside bare COPY and DELETE of the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Baseline, Figure
from everbell.bench.goals import PG_INGEST, PG_WHOLE
from everbell.bench.ingest import bare_rows, ingest_into
from everbell.bench.scene import Scene, batches
from everbell.bench.whole import in_process

_NAMES = ("ingest", "whole", "million", "replicas1", "replicas2", "replicas3")


def postgres(scene: Scene) -> list[Figure]:
    """Into separate schemas, which are removed afterwards."""
    with postgres_stores(scene) as store:
        url = store("bare").partition("?")[0]
        count, size = batches(scene.scale.ingest)
        bare = bare_rows(scene, "PostgreSQL", count, size, finish=False, url=url)
        baseline = Baseline("bare COPY, the same rows", bare.rate)
        ingested = ingest_into(scene, PG_INGEST, store("ingest"), (baseline,), count, size)
        count, size = batches(scene.scale.whole)
        bare = bare_rows(scene, "PostgreSQL", count, size, finish=True, url=url)
        both = Baseline("bare COPY, then DELETE", bare.rate)
        return [ingested, in_process(scene, PG_WHOLE, count, size, both, store("whole"))]


@contextmanager
def postgres_stores(scene: Scene) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a store by its name; all stores are removed afterwards."""
    if scene.postgres is None:
        raise BenchFailed("name a database for it: --postgres URL")
    url = urlsplit(scene.postgres)._replace(query="").geturl()
    asyncio.run(_remove(url))
    try:
        yield lambda name: f"{url}?schema=everbell_bench_{name}"
    finally:
        asyncio.run(_remove(url))


async def _remove(url: str) -> None:
    try:
        import asyncpg
    except ImportError as error:
        raise BenchFailed("PostgreSQL needs a driver: pip install 'everbell[postgres]'") from error
    try:
        connection = await asyncpg.connect(url)
        for name in _NAMES:
            await connection.execute(f"DROP SCHEMA IF EXISTS everbell_bench_{name} CASCADE")
        await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BenchFailed(f"PostgreSQL cannot be used: {error}") from error
