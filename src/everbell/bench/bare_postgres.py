"""What bare PostgreSQL takes in, in a process of its own: the same rows, COPY, one transaction a batch."""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time

import asyncpg
import msgspec

from everbell.bench.bodies import payload
from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import CopyPlan, Sent
from everbell.core.event import Event
from everbell.core.ids import make_id
from everbell.entropy import SeededEntropy
from everbell.stores.rows import event_row

_SPAN_MS = 3_600_000
_DUE_FROM = 1_800_000_000_000
_PARTITIONS = 256
_SEED = 7
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


async def run(plan: CopyPlan) -> Sent:
    """Write all batches, and delete each after it was written if that is part of the work."""
    connection = await asyncpg.connect(plan.url)
    await connection.execute(_TABLE)
    await connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
    entropy = SeededEntropy(_SEED)
    due = _DUE_FROM
    text = msgspec.json.encode(payload(1))
    row = event_row(Event(make_id(due, 1, 1, entropy.nonce()), "bench", 1, 1, due, due, "queue:later", text, due))
    seconds, cpu = 0.0, process_time()
    for batch in range(plan.batches):
        first = batch * plan.size
        rows = [
            (number >> 6 & _PARTITIONS - 1, due + int(entropy.jitter() * _SPAN_MS), number, row)
            for number in range(first, first + plan.size)
        ]
        start = perf_counter()
        await connection.copy_records_to_table("rows", schema_name=_SCHEMA, records=rows, columns=_COLUMNS)
        if plan.finish:
            await connection.execute(_DELETE, *map(list, list(zip(*rows, strict=True))[:3]))
        seconds += perf_counter() - start
    await connection.execute(f"DROP SCHEMA {_SCHEMA} CASCADE")
    await connection.close()
    return Sent(seconds, plan.batches, plan.batches * plan.size, 0, process_time() - cpu)


def main() -> None:
    """The process."""
    say(asyncio.run(run(plan_told(CopyPlan))))


if __name__ == "__main__":
    main()
