"""The translation of errors: some pass, others need a person."""

from __future__ import annotations

import asyncpg
import pytest

from everbell.errors import StoreBroken, StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnusable
from everbell.stores.postgres.failures import store_error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), StoreUnavailable),
        (asyncpg.CannotConnectNowError("the database system is starting up"), StoreUnavailable),
        (asyncpg.AdminShutdownError("terminating connection"), StoreUnavailable),
        (asyncpg.QueryCanceledError("canceling statement due to statement timeout"), StoreUnavailable),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT"), StoreUnavailable),
        (asyncpg.DeadlockDetectedError("deadlock detected"), StoreUnavailable),
        (asyncpg.LockNotAvailableError("canceling statement due to lock timeout"), StoreUnavailable),
        (asyncpg.ConnectionDoesNotExistError("connection was closed"), StoreUnavailable),
        (asyncpg.InterfaceError("connection is closed"), StoreUnavailable),
        (asyncpg.exceptions.TargetServerAttributeNotMatched("none"), StoreUnavailable),
        (ConnectionRefusedError(111, "refused"), StoreUnavailable),
        (TimeoutError(), StoreUnavailable),
        (EOFError(), StoreUnavailable),
        (asyncpg.DiskFullError("could not extend file"), StoreFull),
        (asyncpg.InvalidPasswordError("password authentication failed"), StoreUnusable),
        (asyncpg.InvalidCatalogNameError("no such database"), StoreUnusable),
        (asyncpg.InsufficientPrivilegeError("permission denied"), StoreUnusable),
        (asyncpg.UndefinedTableError("no table"), StoreUnusable),
        (asyncpg.DataCorruptedError("invalid page"), StoreCorrupt),
        (asyncpg.UniqueViolationError("duplicate key"), StoreError),
        (asyncpg.exceptions._base.DataError("value out of range"), StoreError),
    ],
)
def test_each_error_gets_the_store_error_with_the_right_remedy(error: Exception, kind: type[StoreError]) -> None:
    failure = store_error(error, "the store")
    assert type(failure) is kind
    assert not isinstance(failure, StoreBroken)
    assert str(failure).startswith("the store")


def test_a_url_is_not_repeated() -> None:
    error = asyncpg.exceptions.ClientConfigurationError("invalid DSN: scheme is expected, got 'x://u:hush@h'")
    assert "hush" not in str(store_error(error, "the store"))
