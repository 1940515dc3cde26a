"""Writes that are made once or not at all, even if the connection is lost in the middle.

Each writer has a row with the number of its last operation. The transaction of an operation also writes its number
there, and fails unless the old number is lower. After a lost connection the writer writes the number alone. If that
succeeds, the operation was not made and never will be: a server process that still tries finds the number and fails.
Otherwise, the operation was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import asyncpg

from everbell.stores.fence_checks import raise_if_fenced
from everbell.stores.postgres.address import PostgresAddress
from everbell.stores.postgres.connection import ANSWER_S, Connection, PostgresLink
from everbell.stores.postgres.failures import PostgresFailure, store_error
from everbell.stores.postgres.write import ApplyOutcome, Operation, call, copy, is_large
from everbell.stores.table_writes import TableWrites

T = TypeVar("T")

GIVEN_UP = -1  # The stored result of an operation that never will be made.

_TAKE = "SELECT * FROM take_partitions($1, $2, $3, $4)"
_GIVE_UP = """
    INSERT INTO writers AS w (writer, operation, result) VALUES ($1, $2, $3)
    ON CONFLICT (writer) DO UPDATE SET operation = $2, result = $3, seen_at = now() WHERE w.operation < $2
"""
_RESULT = "SELECT result FROM writers WHERE writer = $1"
_MADE = ApplyOutcome((), False)


class NumberedOperations:
    """The operations of one process, one at a time."""

    def __init__(self, link: PostgresLink, address: PostgresAddress, writer: int) -> None:
        self._link = link
        self._address = address
        self._writer = writer
        self._number = 0

    async def apply(self, writes: TableWrites, claimed: Mapping[int, int], *, relaxed: bool) -> ApplyOutcome:
        """Make a batch of changes. After `StoreUnavailable`, nothing was made."""
        self._number += 1
        operation = Operation(self._writer, self._number, claimed, relaxed)
        connection = await self._link.connected()
        if is_large(writes):
            outcome = await self._copy(connection, writes, operation)
            if outcome is not None:
                return outcome
            connection = await self._link.connected()
        answer = await self._settled(connection, call(connection, writes, operation))
        return answer if isinstance(answer, ApplyOutcome) else _MADE

    async def take(self, epochs: Mapping[int, int]) -> int:
        """Put epochs in force; returns the number of a new block of sequences."""
        self._number += 1
        partitions = sorted(epochs)
        wanted = [epochs[partition] for partition in partitions]
        connection = await self._link.connected()
        taking = connection.fetchrow(_TAKE, self._writer, self._number, partitions, wanted)
        answer = await self._settled(connection, taking)
        if isinstance(answer, int):
            return answer
        assert answer is not None
        raise_if_fenced(answer["fenced"] or ())
        block: int = answer["block"]
        return block

    async def _copy(self, connection: Connection, writes: TableWrites, operation: Operation) -> ApplyOutcome | None:
        """Make a large batch; None if that needs arrays. Nothing is made before COMMIT is sent."""
        try:
            async with asyncio.timeout(ANSWER_S):
                outcome = await copy(connection, writes, operation)
                if outcome != _MADE:
                    await connection.execute("ROLLBACK")
                    return outcome
        except asyncpg.UniqueViolationError:
            self._link.drop()  # A record exists already. Only arrays can replace it.
            return None
        except PostgresFailure as error:
            self._link.drop()
            raise store_error(error, self._address.name) from error
        except asyncio.CancelledError:
            self._link.drop()
            raise
        await self._settled(connection, connection.execute("COMMIT"))
        return outcome

    async def _settled(self, connection: Connection, work: Awaitable[T]) -> T | int:
        """Await work that ends in a commit. Returns its answer, or the stored result if the answer was lost. Raises if
        the operation was not made."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await work
        except PostgresFailure as error:
            is_certain = _is_certain(error, connection)
            self._link.drop()
            result = GIVEN_UP if is_certain else await self._find_out()
            if result == GIVEN_UP:
                raise store_error(error, self._address.name) from error
            return result
        except asyncio.CancelledError:
            self._link.drop()
            raise

    async def _find_out(self) -> int:
        """The result of the operation; `GIVEN_UP` if it was not made and never will be."""
        while True:
            connection = await self._link.patiently_connected()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await connection.execute(_GIVE_UP, self._writer, self._number, GIVEN_UP)
                    result: int = await connection.fetchval(_RESULT, self._writer)
                    return result
            except PostgresFailure:
                self._link.drop()


def _is_certain(error: BaseException, connection: Connection) -> bool:
    """Whether the server reported that nothing was made, and goes on."""
    return (
        isinstance(error, asyncpg.PostgresError)
        and not connection.is_closed()
        and getattr(error, "severity_en", None) not in ("FATAL", "PANIC")
    )
