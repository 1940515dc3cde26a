"""Writes that are made once or not at all, even if the connection is lost in the middle.

Each writer has a row with the number of its last operation. The transaction of an operation also writes its number
there, and fails unless the old number is lower. After a lost connection the writer writes the number alone. If that
succeeds, the operation was not made and never will be: a server process that still tries finds the number and fails. So
the writer makes the same changes at once as a new operation, on another connection. Otherwise, the operation was made.

The writer begins a new row now and then (`leftovers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import asyncpg

from everbell.errors import StoreUnavailable
from everbell.stores.fence_checks import raise_if_fenced
from everbell.stores.postgres.address import PostgresAddress
from everbell.stores.postgres.connection import ANSWER_S, TRIES, Connection, PostgresLink, is_certain, is_lost
from everbell.stores.postgres.failures import PostgresFailure, store_error
from everbell.stores.postgres.leftovers import Leftovers
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


class _LostOperationError(Exception):
    """The connection was lost, and the operation was not made and never will be. `failure` is for the caller."""

    def __init__(self, failure: StoreUnavailable) -> None:
        self.failure = failure


class NumberedOperations:
    """The operations of one process, one at a time. `first_key` is a random number of the process."""

    def __init__(self, link: PostgresLink, address: PostgresAddress, first_key: int) -> None:
        self._link = link
        self._address = address
        self._number = 0
        self._leftovers = Leftovers(link, first_key)

    async def apply(self, writes: TableWrites, claimed: Mapping[int, int], *, relaxed: bool) -> ApplyOutcome:
        """Make a batch of changes. After `StoreUnavailable`, nothing was made."""

        async def once() -> ApplyOutcome:
            operation = Operation(self._leftovers.key, self._number, claimed, relaxed)
            connection = await self._link.connected()
            if is_large(writes):
                outcome = await self._copy(connection, writes, operation)
                if outcome is not None:
                    return outcome
                connection = await self._link.connected()
            answer = await self._settled(connection, call(connection, writes, operation))
            return answer if isinstance(answer, ApplyOutcome) else _MADE

        outcome = await self._repeated(once)
        if outcome == _MADE:
            self._leftovers.count(writes.counts)
            await self._leftovers.end_turn()
        return outcome

    async def take(self, epochs: Mapping[int, int]) -> int:
        """Put epochs in force; returns the number of a new block of sequences."""
        partitions = sorted(epochs)
        wanted = [epochs[partition] for partition in partitions]

        async def once() -> int:
            connection = await self._link.connected()
            taking = connection.fetchrow(_TAKE, self._leftovers.key, self._number, partitions, wanted)
            answer = await self._settled(connection, taking)
            if isinstance(answer, int):
                return answer
            assert answer is not None
            raise_if_fenced(answer["fenced"] or ())
            block: int = answer["block"]
            return block

        return await self._repeated(once)

    async def _repeated(self, once: Callable[[], Awaitable[T]]) -> T:
        """Try an operation until it is made or refused, each time as a new operation."""
        for left in reversed(range(TRIES)):
            self._number += 1
            self._leftovers.begin()
            try:
                return await once()
            except _LostOperationError as lost:
                if not left:
                    raise lost.failure from lost.__cause__
        raise AssertionError("the last try returns or raises")

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
            raise self._dropped(error, connection) from error
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
            was_certain = is_certain(error, connection)
            failure = self._dropped(error, connection)
            result = GIVEN_UP if was_certain else await self._find_out()
            if result == GIVEN_UP:
                if not was_certain:
                    self._leftovers.give_up()
                raise failure from error
            return result
        except asyncio.CancelledError:
            self._leftovers.give_up()
            self._link.drop()
            raise

    def _dropped(self, error: BaseException, connection: Connection) -> Exception:
        """Drop the connection after an error; returns the error for the caller if nothing was made."""
        lost = is_lost(error, connection)
        self._link.drop()
        failure = store_error(error, self._address.name)
        return _LostOperationError(failure) if lost and isinstance(failure, StoreUnavailable) else failure

    async def _find_out(self) -> int:
        """The result of the operation; `GIVEN_UP` if it was not made and never will be."""
        while True:
            connection = await self._link.patiently_connected()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await connection.execute(_GIVE_UP, self._leftovers.key, self._number, GIVEN_UP)
                    result: int = await connection.fetchval(_RESULT, self._leftovers.key)
                    return result
            except PostgresFailure:
                self._link.drop()
