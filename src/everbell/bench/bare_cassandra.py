"""What a bare driver writes into Cassandra, in a process of its own: the same rows, a request each, with as many under
way at a time as the store has."""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time

import msgspec

from everbell.bench.bodies import payload
from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import CopyPlan, Sent
from everbell.core.event import Event
from everbell.core.ids import make_id
from everbell.entropy import SeededEntropy, SystemEntropy
from everbell.stores.cassandra_address import read_address
from everbell.stores.cassandra_link import Link
from everbell.stores.cassandra_tables import make_tables
from everbell.stores.rows import event_row

_SPAN_MS = 3_600_000
_DUE_FROM = 1_800_000_000_000
_PARTITIONS = 256
_BUCKET_MS = 600_000
_SEED = 7
_TABLE = """
    CREATE TABLE IF NOT EXISTS {}.bare (
        partition int, bucket bigint, run_at bigint, sequence bigint, body blob,
        PRIMARY KEY ((partition, bucket), run_at, sequence)
    )
"""
_INSERT = "INSERT INTO bare (partition, bucket, run_at, sequence, body) VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM bare WHERE partition = ? AND bucket = ? AND run_at = ? AND sequence = ?"


async def run(plan: CopyPlan) -> Sent:
    """Write all batches, and delete each after it was written if that is part of the work."""
    address = read_address(plan.url)
    await make_tables(address, "everbell.stores", "cassandra_1.cql", SystemEntropy())
    link = Link(address)
    await link.run(_TABLE.format(address.keyspace))
    entropy = SeededEntropy(_SEED)
    due = _DUE_FROM
    text = msgspec.json.encode(payload(1))
    row = event_row(Event(make_id(due, 1, 1, entropy.nonce()), "bench", 1, 1, due, due, "queue:later", text, due))
    await link.prepare(_INSERT)
    seconds, cpu = 0.0, process_time()
    for batch in range(plan.batches):
        first = batch * plan.size
        rows = []
        for number in range(first, first + plan.size):
            at = due + int(entropy.jitter() * _SPAN_MS)
            rows.append((number >> 6 & _PARTITIONS - 1, at // _BUCKET_MS, at, number, row))
        start = perf_counter()
        await link.ask_all(_INSERT, rows)
        if plan.finish:
            await link.ask_all(_DELETE, [row[:4] for row in rows])
        seconds += perf_counter() - start
    await link.close()
    return Sent(seconds, plan.batches, plan.batches * plan.size, 0, process_time() - cpu)


def main() -> None:
    """The process."""
    say(asyncio.run(run(plan_told(CopyPlan))))


if __name__ == "__main__":
    main()
