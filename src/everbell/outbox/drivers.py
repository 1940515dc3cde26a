"""Calling the outbox's functions on the caller's own connection, with the library that the caller has chosen.

No driver is imported: a connection is recognised by the module of its class, and used by its own methods.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from msgspec import Struct

SUPPORTED = "psycopg 3, asyncpg, SQLAlchemy and Django"


class OutboxCall(Struct, frozen=True):
    """A call of a function in the schema everbell: its arguments, each with its type."""

    function: str
    arguments: tuple[tuple[object, str], ...]

    def text(self, place: Callable[[int], str]) -> str:
        """The statement. A driver may have an encoder of its own for JSON, so JSON goes as text."""
        casts = [f"CAST({place(index)} AS {_sent_as(kind)})" for index, (_, kind) in enumerate(self.arguments)]
        parts = [
            f"CAST({cast} AS json)" if kind == "json" else cast
            for cast, (_, kind) in zip(casts, self.arguments, strict=True)
        ]
        return f"SELECT everbell.{self.function}({', '.join(parts)})"

    @property
    def values(self) -> list[object]:
        return [value for value, _ in self.arguments]


def _sent_as(kind: str) -> str:
    return "text" if kind == "json" else kind


def run(connection: Any, call: OutboxCall) -> Any:
    """Call a function on a connection that waits; returns its result."""
    if _library(connection) == "sqlalchemy":
        return connection.execute(*_sqlalchemy(call)).scalar()
    with connection.cursor() as cursor:
        cursor.execute(call.text(lambda _: "%s"), call.values)
        return cursor.fetchone()[0]


async def run_async(connection: Any, call: OutboxCall) -> Any:
    """Call a function on a connection that awaits; returns its result."""
    library = _library(connection)
    if library == "asyncpg":
        return await connection.fetchval(call.text(lambda index: f"${index + 1}"), *call.values)
    if library == "sqlalchemy":
        return (await connection.execute(*_sqlalchemy(call))).scalar()
    async with connection.cursor() as cursor:
        await cursor.execute(call.text(lambda _: "%s"), call.values)
        return (await cursor.fetchone())[0]


def transaction(connection: Any) -> AbstractContextManager[Any]:
    """A transaction, or a savepoint in the transaction that is open."""
    library = _library(connection)
    if library == "django":
        from django.db.transaction import atomic

        atomic_block: AbstractContextManager[Any] = atomic(using=connection.alias)
        return atomic_block
    return _begin(connection, library)  # type: ignore[no-any-return]  # the driver's own type


def transaction_async(connection: Any) -> AbstractAsyncContextManager[Any]:
    """The same for a connection that awaits."""
    return _begin(connection, _library(connection))  # type: ignore[no-any-return]  # the driver's own type


def _begin(connection: Any, library: str) -> Any:
    if library == "sqlalchemy":
        return connection.begin_nested() if connection.in_transaction() else connection.begin()
    if library in ("psycopg", "asyncpg"):
        return connection.transaction()
    raise TypeError(f"{type(connection).__name__} is no connection that Everbell knows; it knows {SUPPORTED}")


def _sqlalchemy(call: OutboxCall) -> tuple[Any, dict[str, object]]:
    from sqlalchemy import text

    values = {f"value_{index}": value for index, value in enumerate(call.values)}
    return text(call.text(lambda index: f":value_{index}")), values


def _library(connection: Any) -> str:
    names = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    return next((name for name in names if name in ("asyncpg", "django", "psycopg", "sqlalchemy")), names[0])
