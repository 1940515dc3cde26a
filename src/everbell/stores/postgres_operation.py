"""Writes that are made once or not at all, even when the connection is lost in the middle.

Each process that writes has a row of its own, with the number of its last operation; an operation is made in the same
transaction as its number is written there, and only if the number there is lower. After a lost connection the number
is written by itself. If that succeeds, the operation was not made, and never will be: whichever server process is still
about to make it finds the number and fails. If it does not, the operation was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import asyncpg

from everbell.stores.postgres_address import Address
from everbell.stores.postgres_failures import Failure, store_error
from everbell.stores.postgres_link import ANSWER_S, Connection, Link
from everbell.stores.postgres_write import Operation, Outcome, call, copy, is_large
from everbell.stores.semantics import raise_if_fenced
from everbell.stores.table_batch import Batch

T = TypeVar("T")

GIVEN_UP = -1
"""The result that is written down for an operation that never will be made."""

_TAKE = "SELECT * FROM take_partitions($1, $2, $3, $4)"
_GIVE_UP = """
    INSERT INTO writers AS w (writer, operation, result) VALUES ($1, $2, $3)
    ON CONFLICT (writer) DO UPDATE SET operation = $2, result = $3, seen_at = now() WHERE w.operation < $2
"""
_RESULT = "SELECT result FROM writers WHERE writer = $1"
_MADE = Outcome((), False)


class Operations:
    """The operations of one process, one at a time."""

    def __init__(self, link: Link, address: Address, writer: int) -> None:
        self._link = link
        self._address = address
        self._writer = writer
        self._number = 0

    async def apply(self, batch: Batch, claimed: Mapping[int, int], *, relaxed: bool) -> Outcome:
        """Make a batch of changes. Raises `StoreUnavailable` when it was not made."""
        self._number += 1
        operation = Operation(self._writer, self._number, claimed, relaxed)
        connection = await self._link.connected()
        if is_large(batch):
            outcome = await self._copy(connection, batch, operation)
            if outcome is not None:
                return outcome
            connection = await self._link.connected()
        answer = await self._settled(connection, call(connection, batch, operation))
        return answer if isinstance(answer, Outcome) else _MADE

    async def take(self, epochs: Mapping[int, int]) -> int:
        """Put epochs in force; returns the number of the block of sequences that comes with them."""
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

    async def _copy(self, connection: Connection, batch: Batch, operation: Operation) -> Outcome | None:
        """Make a large batch; None if it has to be done with arrays. Nothing can be made before COMMIT is sent."""
        try:
            async with asyncio.timeout(ANSWER_S):
                outcome = await copy(connection, batch, operation)
                if outcome != _MADE:
                    await connection.execute("ROLLBACK")
                    return outcome
        except asyncpg.UniqueViolationError:
            self._link.drop()  # A record that is there already is replaced, which only arrays can do.
            return None
        except Failure as error:
            self._link.drop()
            raise store_error(error, self._address.name) from error
        except asyncio.CancelledError:
            self._link.drop()
            raise
        await self._settled(connection, connection.execute("COMMIT"))
        return outcome

    async def _settled(self, connection: Connection, work: Awaitable[T]) -> T | int:
        """Await what ends in a commit: returns its answer, or when that was lost the result that was written down.
        Raises when it was not made.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                return await work
        except Failure as error:
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
        """The result of the operation; `GIVEN_UP` if it was not made and now cannot be."""
        while True:
            connection = await self._link.patiently_connected()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await connection.execute(_GIVE_UP, self._writer, self._number, GIVEN_UP)
                    result: int = await connection.fetchval(_RESULT, self._writer)
                    return result
            except Failure:
                self._link.drop()


def _is_certain(error: BaseException, connection: Connection) -> bool:
    """Whether the server itself said that nothing was made, and goes on."""
    return (
        isinstance(error, asyncpg.PostgresError)
        and not connection.is_closed()
        and getattr(error, "severity_en", None) not in ("FATAL", "PANIC")
    )
