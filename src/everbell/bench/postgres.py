"""Everbell on PostgreSQL: bulk ingest and the whole path, beside bare COPY and DELETE of the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Baseline, Figure
from everbell.bench.goals import PG_INGEST, PG_WHOLE
from everbell.bench.ingest import ingest_into
from everbell.bench.plans import CopyPlan, Sent
from everbell.bench.scene import PATIENCE_S, Scene, batches
from everbell.bench.stage import Stage
from everbell.bench.whole import in_process

_SCHEMAS = ("everbell_bench_ingest", "everbell_bench_whole", "everbell_bench_million")


def postgres(scene: Scene) -> list[Figure]:
    """Into a schema of its own each, which goes afterwards."""
    with postgres_stores(scene) as store:
        url = store("bare").partition("?")[0]
        count, size = batches(scene.scale.ingest)
        bare = Baseline("bare COPY, the same rows", _bare(scene, url, count, size, finish=False).rate)
        ingested = ingest_into(scene, PG_INGEST, store("ingest"), (bare,), count, size)
        count, size = batches(scene.scale.whole)
        both = Baseline("bare COPY, then DELETE", _bare(scene, url, count, size, finish=True).rate)
        return [ingested, in_process(scene, PG_WHOLE, count, size, both, store("whole"))]


@contextmanager
def postgres_stores(scene: Scene) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a store by its name; all of them go afterwards."""
    if scene.postgres is None:
        raise BenchFailed("name a database for it: --postgres URL")
    url = urlsplit(scene.postgres)._replace(query="").geturl()
    asyncio.run(_remove(url))
    try:
        yield lambda name: f"{url}?schema=everbell_bench_{name}"
    finally:
        asyncio.run(_remove(url))


def _bare(scene: Scene, url: str, count: int, size: int, *, finish: bool) -> Sent:
    with Stage() as stage:
        partner = stage.partner("everbell.bench.bare_postgres", CopyPlan(url, count, size, finish))
        return Sent(**partner.hear(10 * PATIENCE_S, scene.progress("bare PostgreSQL", count * size)))


async def _remove(url: str) -> None:
    try:
        import asyncpg
    except ImportError as error:
        raise BenchFailed("PostgreSQL needs a driver: pip install 'everbell[postgres]'") from error
    try:
        connection = await asyncpg.connect(url)
        for schema in _SCHEMAS:
            await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BenchFailed(f"PostgreSQL cannot be used: {error}") from error
