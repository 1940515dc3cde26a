"""The rows that operations write besides events: the number of the last operation, and the counts of tenants.

Every operation updates these rows. While some transaction keeps the server from removing dead versions, an updated row
has a longer and longer chain of them, and each update has to walk to its end. So a process begins new rows after some
operations: a *turn*. At the end of a turn, the row with the last number is removed, and for each tenant one row with
the sum takes the place of two.

A row with the number of an operation that was given up stays for a month, because the request may still be on its way.
If a process ends, its rows stay until a store is opened again (`schema`).

All rows are found by primary keys that this process knows, so removing them reads past no dead rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from everbell.errors import StoreError
from everbell.stores.postgres.connection import PostgresLink

TURN_OPERATIONS = 128

# If a crash of the database undoes this, the rows are back. So it need not wait for the disk.
_FOLD = """
    WITH quick AS (SELECT set_config('synchronous_commit', 'off', true)),
    known AS (DELETE FROM writers WHERE writer = $1),
    gone AS (
        DELETE FROM counts WHERE ctid = ANY (ARRAY(
            SELECT (SELECT c.ctid FROM counts AS c WHERE c.tenant = n.tenant AND c.writer = n.writer)
            FROM unnest($2::text[], $3::bigint[]) AS n (tenant, writer)))
        RETURNING *
    )
    INSERT INTO counts (tenant, writer, pending, dead, delivered, cancelled, expired)
    SELECT tenant, $4, sum(pending), sum(dead), sum(delivered), sum(cancelled), sum(expired)
    FROM gone, quick GROUP BY tenant
"""


class Leftovers:
    """The rows of one process. Each turn has a key, and so has each fold."""

    def __init__(self, link: PostgresLink, first_key: int) -> None:
        self._link = link
        self._keys = count(first_key)
        self.key = next(self._keys)
        """The key of the current turn."""
        self._operations = 0
        self._counted: set[str] = set()
        """The tenants with a row of this turn."""
        self._sums: dict[str, int] = {}
        """By tenant: the key of the row with the sum of all earlier turns."""
        self._stays = False

    def begin(self) -> None:
        """An operation begins."""
        self._operations += 1

    def count(self, tenants: Iterable[str]) -> None:
        """An operation was made, and changed the counts of these tenants."""
        self._counted.update(tenants)

    def give_up(self) -> None:
        """The request of an operation that was given up may still be on its way."""
        self._stays = True

    async def end_turn(self) -> None:
        """Begin a new turn if this one is long enough. If the store cannot do that now, its rows stay."""
        if self._operations < TURN_OPERATIONS:
            return
        fold_key, tenants = next(self._keys), list(self._counted)
        places = [(tenant, self.key) for tenant in tenants]
        places += [(tenant, self._sums[tenant]) for tenant in tenants if tenant in self._sums]
        arguments = (None if self._stays else self.key, [each for each, _ in places], [key for _, key in places])
        try:
            await self._link.ask(lambda link: link.execute(_FOLD, *arguments, fold_key))
        except StoreError:
            return  # The operation was made, and the next one will meet the same error.
        self._sums.update(dict.fromkeys(tenants, fold_key))
        self._operations, self._counted, self._stays = 0, set(), False
        self.key = next(self._keys)
