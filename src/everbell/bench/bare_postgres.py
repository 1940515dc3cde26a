"""Bare PostgreSQL in its own process: the same rows, COPY, one transaction per batch."""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time

import asyncpg

from everbell.bench.bare_events import BareEvents
from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import RowsPlan, Sent
from everbell.stores.rows import event_row

_SCHEMA = "everbell_bench_bare"
_COLUMNS = ("partition", "run_at", "sequence", "body")
_TABLE = f"""
    DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE;
    CREATE SCHEMA {_SCHEMA};
    CREATE TABLE {_SCHEMA}.rows (
        run_at bigint NOT NULL, sequence bigint NOT NULL, partition int NOT NULL, body bytea NOT NULL,
        PRIMARY KEY (partition, run_at, sequence)
    )
"""
_DELETE = f"""
    DELETE FROM {_SCHEMA}.rows AS r
    USING unnest($1::int[], $2::bigint[], $3::bigint[]) AS g (partition, run_at, sequence)
    WHERE r.partition = g.partition AND r.run_at = g.run_at AND r.sequence = g.sequence
"""  # noqa: S608 - the schema is a constant of this module, and values are passed as arguments


async def run(plan: RowsPlan) -> Sent:
    """Write all batches, and delete each after it was written if the plan says so."""
    connection = await asyncpg.connect(plan.place)
    await connection.execute(_TABLE)
    await connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
    bare = BareEvents(plan.size)
    row = event_row(bare.event())
    seconds, cpu = 0.0, process_time()
    for batch in range(plan.batches):
        rows = [(*place, row) for place in bare.places(batch)]
        start = perf_counter()
        await connection.copy_records_to_table("rows", schema_name=_SCHEMA, records=rows, columns=_COLUMNS)
        if plan.finish:
            await connection.execute(_DELETE, *map(list, list(zip(*rows, strict=True))[:3]))
        seconds += perf_counter() - start
    await connection.execute(f"DROP SCHEMA {_SCHEMA} CASCADE")
    await connection.close()
    return Sent(seconds, plan.batches, plan.batches * plan.size, 0, process_time() - cpu)


if __name__ == "__main__":
    say(asyncio.run(run(plan_told(RowsPlan))))
