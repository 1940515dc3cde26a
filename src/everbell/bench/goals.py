"""The goals on a machine of 2 cores."""

from __future__ import annotations

from everbell.bench.figures import Goal

INGEST = Goal("bulk ingest over HTTP, durable", "events/s", 80_000, 150_000)
WHOLE = Goal("whole path in process: in, stored, delivered, finished", "events/s", 50_000, 100_000)
WHOLE_HTTP = Goal("whole path, in over HTTP, delivered in process", "events/s", 50_000, 100_000)
SINGLE = Goal("single-event POSTs, durable, 64 connections", "events/s", 12_000, 30_000)
PULL = Goal("delivery to pulling workers, 500 at a time", "events/s", 50_000, 100_000)
PUSH = Goal("delivery over HTTP, one POST an event", "events/s", 15_000, 40_000)
PUSH_BATCH = Goal("delivery over HTTP, 100 events a POST", "events/s", 60_000, 150_000)
LATE_HANDLER = Goal("lateness p99 at 10,000/s, in process", "ms", 10, 3, more_is_better=False)
LATE_HTTP = Goal("lateness p99 at 10,000/s, over HTTP", "ms", 10, 3, more_is_better=False)
PG_INGEST = Goal("PostgreSQL: bulk ingest over HTTP, durable", "events/s", 50_000)
PG_WHOLE = Goal("PostgreSQL: whole path in process: in, stored, delivered, finished", "events/s", 30_000)
CASSANDRA_INGEST = Goal("Cassandra: bulk ingest over HTTP, durable", "events/s")
CASSANDRA_WHOLE = Goal("Cassandra: whole path in process: in, stored, delivered, finished", "events/s")
CASSANDRA_SHARD = Goal("Cassandra: {count} due in one minute, most in a shard", "events", 1_000, more_is_better=False)
KAFKA = Goal("from Kafka through RocksDB to Kafka", "events/s", 30_000)
OUTBOX_TRANSACTIONS = Goal("transactions that schedule an event, 16 connections", "transactions/s", 10_000)
OUTBOX_LATE = Goal("outbox: p99 from the transaction to the delivery of a due event", "ms", 25, more_is_better=False)
OUTBOX_COLLECT = Goal("outbox: rows collected and durable", "events/s", 30_000)
MEMORY = Goal("memory with {count} pending", "MB", 400, 200, more_is_better=False)
RESTART = Goal("restart with {count} pending: first delivery", "s", 2, 0.5, more_is_better=False)
HERD = Goal("{count} due in the same second: all delivered", "events/s")
PREVIEW = Goal("preview of 1,000 times of a cron expression, the slowest of some", "ms", 20, more_is_better=False)
RECURRING = Goal("memory with {count} pending that come again", "MB", more_is_better=False)
GUARDED = Goal("in and out over HTTP with access keys, quotas and signatures", "events/s")
GUARDED_SHARE = Goal("what those checks leave of the throughput, by CPU time", "of 1", 0.8)
CALM = Goal("another tenant's lateness p99 meanwhile", "ms", more_is_better=False)
MILLION_IN = Goal("{store}: {count} events of 500 bytes in", "s", more_is_better=False)
MILLION_OUT = Goal("{store}: all of them delivered in process", "s", more_is_better=False)
