"""Other writes to a PostgreSQL store than changes: claim the store, set undecodable rows aside, and forget records. All
of them may be repeated."""

from __future__ import annotations

import msgspec

from everbell.stores.port import Poison
from everbell.stores.postgres.connection import Connection

# The oldest hours first. The index entries of client-given ids go with their records, unless they point elsewhere.
SWEEP = """
    WITH over AS (
        SELECT hour, tenant, id, occurrence FROM records WHERE hour < $1
        ORDER BY hour, tenant, id, occurrence LIMIT $2
    ), gone AS (
        DELETE FROM records AS r USING over AS o
        WHERE r.hour = o.hour AND r.tenant = o.tenant AND r.id = o.id AND r.occurrence = o.occurrence
        RETURNING r.hour, r.tenant, r.id, r.occurrence
    ), forgotten AS (
        DELETE FROM ids AS i USING gone AS g
        WHERE i.tenant = g.tenant AND i.id = g.id AND g.occurrence = 0 AND i.space = 'H' AND i.at = g.hour
    )
    SELECT count(*) FROM gone
"""

_BURY_SCHEDULED = """
    WITH gone AS (DELETE FROM scheduled WHERE partition = $1 AND run_at = $2 AND sequence = $3 RETURNING body)
    INSERT INTO graves (space, partition, at, sequence, body) SELECT 'E', $1, $2, $3, body FROM gone
"""
_BURY_WAITING = """
    WITH gone AS (
        DELETE FROM waiting WHERE partition = $1 AND due_at = $2 AND sequence = $3 AND tenant = $4 AND key = $5
        RETURNING body
    )
    INSERT INTO graves (space, partition, at, sequence, tenant, key, body)
    SELECT 'W', $1, $2, $3, $4, $5, body FROM gone
"""

_CLAIM = """
    UPDATE store SET cluster = $1, claimed_epoch = (SELECT max(epoch) FROM fence) WHERE cluster IS NULL
"""


async def claim(connection: Connection, cluster: str) -> tuple[str, int]:
    """Give the store to a cluster, unless it has one. Returns the owner, and the highest epoch before its claim."""
    await connection.execute(_CLAIM, cluster)
    row = await connection.fetchrow("SELECT cluster, claimed_epoch FROM store")
    assert row is not None
    return row["cluster"], row["claimed_epoch"]


async def bury(connection: Connection, poison: Poison) -> None:
    place = poison.partition, poison.run_at, poison.sequence
    if poison.place:
        tenant, key = msgspec.msgpack.decode(poison.place, type=tuple[str, str])
        await connection.execute(_BURY_WAITING, *place, tenant, key)
    else:
        await connection.execute(_BURY_SCHEDULED, *place)
