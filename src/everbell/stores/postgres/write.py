"""Sending a batch to PostgreSQL: as arrays in one call, after a COPY if it is large.

docs/internals/postgresql.md has the measurements. For 100 rows, the additional round trips of COPY cost as much as it
saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from everbell.core.ids import PREFIX
from everbell.stores.postgres.connection import Connection
from everbell.stores.postgres.reads import columns_of
from everbell.stores.table_writes import TableWrites

COPIED_MIN = 200  # How many rows of a table are worth a COPY.

# A number in an array costs the driver 0.47 µs. In a text that the server casts to an array it costs 0.23 µs, and the
# server 0.1 µs more: our one thread is the bottleneck.
_AS_TEXT = {4: "int[]", 5: "bigint[]", 6: "int[]", 7: "bigint[]", 8: "bigint[]"}
_AS_TEXT |= {9: "int[]", 10: "bigint[]", 11: "bigint[]", 13: "int[]", 16: "bigint[]"}
_ARGUMENTS = ", ".join(
    f"${number}::text::{_AS_TEXT[number]}" if number in _AS_TEXT else f"${number}" for number in range(1, 29)
)
_APPLY = f"SELECT * FROM apply_changes({_ARGUMENTS})"  # noqa: S608 - casts and numbers of parameters, from the table above; values are arguments
_SCHEDULED = ("partition", "run_at", "sequence", "body")
_RECORDS = ("hour", "tenant", "id", "occurrence", "body")

PostgresRow = tuple[Any, ...]


class ApplyOutcome(NamedTuple):
    """The answer of the database: partitions with other owners, or that an id is taken. If neither, it was made."""

    fenced: Sequence[int]
    is_taken: bool


class Operation(NamedTuple):
    """The writer, the number of its operation, and the epochs that it claims."""

    writer: int
    number: int
    claimed: Mapping[int, int]
    is_relaxed: bool


async def call(connection: Connection, writes: TableWrites, operation: Operation) -> ApplyOutcome:
    """Make a batch with one call, which is one transaction."""
    scheduled = [(*key, body) for key, body in writes.scheduled.rows.items()]
    return await _apply(connection, writes, operation, scheduled, list(writes.records.values()))


def is_large(writes: TableWrites) -> bool:
    return len(writes.scheduled.rows) >= COPIED_MIN or len(writes.records) >= COPIED_MIN


async def copy(connection: Connection, writes: TableWrites, operation: Operation) -> ApplyOutcome:
    """Make a large batch, except for the COMMIT. After a refusal, the caller has to roll back.

    COPY cannot replace a row, so it gets only rows that are certainly new.
    """
    gone, new = writes.scheduled.gone, writes.scheduled.rows
    replaced: list[PostgresRow] = []
    if not gone.isdisjoint(new):
        replaced = [(*key, body) for key, body in new.items() if key in gone]
        new = {key: body for key, body in new.items() if key not in gone}
    scheduled = [(*key, body) for key, body in new.items()]
    records: list[PostgresRow] = []
    others: list[PostgresRow] = []
    for row in writes.records.values():
        (records if row[2].startswith(PREFIX) else others).append(row)
    await connection.execute("BEGIN")
    if scheduled:
        await connection.copy_records_to_table("scheduled", records=scheduled, columns=_SCHEDULED)
    if records:
        await connection.copy_records_to_table("records", records=records, columns=_RECORDS)
    return await _apply(connection, writes, operation, replaced, others)


async def _apply(
    connection: Connection,
    writes: TableWrites,
    operation: Operation,
    scheduled: list[PostgresRow],
    records: list[PostgresRow],
) -> ApplyOutcome:
    *scheduled_columns, bodies = columns_of(scheduled, 4)
    hours, tenants, ids, occurrences, record_bodies = columns_of(records, 5)
    names = writes.entries.items()
    heads = writes.heads.items()
    row = await connection.fetchrow(
        _APPLY,
        operation.writer,
        operation.number,
        operation.is_relaxed,
        _numbers(operation.claimed),
        _numbers(operation.claimed.values()),
        *map(_numbers, columns_of(writes.scheduled.gone, 3)),
        *map(_numbers, scheduled_columns),
        bodies,
        _numbers(hours),
        tenants,
        ids,
        _numbers(occurrences),
        record_bodies,
        [(tenant, operation.writer, *tally) for tenant, tally in writes.counts.items()],
        [(*key, None) for key in writes.waiting.gone],
        [(*key, body) for key, body in writes.waiting.rows.items()],
        [(*key, None) for key in writes.dead.gone],
        [(*key, body) for key, body in writes.dead.rows.items()],
        # In the same order for all writers, which prevents deadlocks.
        [(*name, *entry) for name, entry in sorted(writes.freed.items())],
        [(*name, *entry) for name, entry in sorted(writes.claims.items())],
        [(*name, *entry) for name, entry in names if entry is not None],
        [(*name, "", 0, 0, 0, None) for name, entry in names if entry is None],
        [(*name, head) for name, head in heads if head is not None],
        [(*name, None) for name, head in heads if head is None],
    )
    assert row is not None
    return ApplyOutcome(row["fenced"] or (), row["taken"])


def _numbers(numbers: Iterable[int]) -> str:
    return f"{{{str(list(numbers))[1:-1]}}}"  # `str` of a list is faster than any loop here.
