"""One effect for repeated deliveries: `async with everbell.once(connection, occurrence) as first:`.

The tenant, the id and the number of the occurrence are recorded in the caller's database, in the transaction of the
block. `first` is False if they are there already. The record commits together with the effects of the block, or not at
all.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

from everbell.core.occurrence import Occurrence
from everbell.outbox.drivers import OutboxCall, run, run_async, transaction, transaction_async


class once:  # noqa: N801 - used like a function
    """A block in a transaction: a new one, or a savepoint in the transaction that is open.

    `with` is for connections of psycopg 3, SQLAlchemy and Django; `async with` for those that await.
    """

    def __init__(self, connection: Any, occurrence: Occurrence) -> None:
        self._connection = connection
        names: tuple[tuple[object, str], ...] = ((occurrence.id, "text"), (occurrence.number, "bigint"))
        self._call = OutboxCall("once", (*names, (occurrence.tenant, "text")))
        self._block: AbstractContextManager[Any] | None = None
        self._async_block: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> bool:
        self._block = block = transaction(self._connection)
        block.__enter__()
        try:
            return bool(run(self._connection, self._call))
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._block is not None, "the block was entered"
        self._block.__exit__(kind, error, traceback)

    async def __aenter__(self) -> bool:
        self._async_block = block = transaction_async(self._connection)
        await block.__aenter__()
        try:
            return bool(await run_async(self._connection, self._call))
        except BaseException as error:
            await block.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._async_block is not None, "the block was entered"
        await self._async_block.__aexit__(kind, error, traceback)
