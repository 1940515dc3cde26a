"""A bare Cassandra driver in its own process: the same rows, a request each, as many in flight as the store has."""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time

from everbell.bench.bare_events import BareEvents
from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import RowsPlan, Sent
from everbell.entropy import SystemEntropy
from everbell.stores.cassandra.address import read_address
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.tables import make_tables
from everbell.stores.rows import event_row

_BUCKET_MS = 600_000
_TABLE = """
    CREATE TABLE IF NOT EXISTS {}.bare (
        partition int, bucket bigint, run_at bigint, sequence bigint, body blob,
        PRIMARY KEY ((partition, bucket), run_at, sequence)
    )
"""
_INSERT = "INSERT INTO bare (partition, bucket, run_at, sequence, body) VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM bare WHERE partition = ? AND bucket = ? AND run_at = ? AND sequence = ?"


async def run(plan: RowsPlan) -> Sent:
    """Write all batches, and delete each after it was written if the plan says so."""
    address = read_address(plan.place)
    await make_tables(address, "everbell.stores.cassandra", "schema_1.cql", SystemEntropy())
    link = CassandraSession(address)
    await link.run(_TABLE.format(address.keyspace))
    bare = BareEvents(plan.size)
    row = event_row(bare.event())
    await link.prepare(_INSERT)
    seconds, cpu = 0.0, process_time()
    for batch in range(plan.batches):
        rows = [(partition, at // _BUCKET_MS, at, number, row) for partition, at, number in bare.places(batch)]
        start = perf_counter()
        await link.ask_all(_INSERT, rows)
        if plan.finish:
            await link.ask_all(_DELETE, [values[:4] for values in rows])
        seconds += perf_counter() - start
    await link.close()
    return Sent(seconds, plan.batches, plan.batches * plan.size, 0, process_time() - cpu)


if __name__ == "__main__":
    say(asyncio.run(run(plan_told(RowsPlan))))
