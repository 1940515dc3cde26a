"""Errors of PostgreSQL, its driver and the network, translated for callers of a store.

If the server reports an error and the connection stays usable, the transaction was rolled back. If the connection is
lost after the request was sent, the outcome is unknown.
"""

from __future__ import annotations

import asyncpg

from everbell.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnusable

_PASSING_CLASSES = {
    "08",  # connection exception
    "25",  # invalid transaction state: read-only, idle for too long
    "40",  # deadlock, serialization failure
    "53",  # out of connections or memory; a full disk has its own error
    "55",  # a lock was not available in time
    "EB",  # raised by our own functions: the operation was given up
    "57",  # shutdown, starting up, statement timeout
}
_DISK_FULL = "53100"
TO_MEND = {
    "28000": "check the user's name, and the server's pg_hba.conf",
    "28P01": "correct the password in the URL, in PGPASSWORD or in the password file",
    "3D000": "create the database with CREATE DATABASE, or name another one",
    "3F000": "the schema is gone: restore it, or start with a new one",
    "42501": "GRANT CREATE ON DATABASE to the user, or create the schema and let the user own it",
    "42704": "remove this option from the URL",
    "42P01": "a table is gone: restore the schema from a backup",
}
"""By the state of SQL: how a person mends the cause."""

PostgresFailure = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)
"""All errors of the driver that are not programming errors; time-outs are `OSError`s."""


def store_error(error: BaseException, name: str) -> StoreError:
    """The error for the caller of a store at the address called `name`."""
    if isinstance(error, asyncpg.PostgresError):
        return _server_error(error, name)
    if isinstance(error, asyncpg.exceptions.TargetServerAttributeNotMatched):
        return StoreUnavailable(f"{name}: no server there accepts writes now: look for the primary")
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return StoreUnusable(f"{name}: {bad_settings(error)}")
    if isinstance(error, ValueError):
        return StoreError(f"{name} cannot store this: {said(error)}")
    reason = "no answer in time" if isinstance(error, TimeoutError) else said(error)
    return StoreUnavailable(f"{name} cannot be reached ({reason}): check that it runs, and the address")


def _server_error(error: asyncpg.PostgresError, name: str) -> StoreError:
    state = error.sqlstate or ""
    if state == _DISK_FULL:
        return StoreFull(f"{name}: the disk of the database is full: make room")
    if state in TO_MEND:
        return StoreUnusable(f"{name}: {said(error)}: {TO_MEND[state]}")
    if state[:2] in _PASSING_CLASSES:
        return StoreUnavailable(f"{name}: {said(error)}")
    if state[:2] == "XX":
        return StoreCorrupt(f"{name}: {said(error)}: read the server's log, and restore from a backup if necessary")
    return StoreError(f"{name}: {said(error)} ({state})")


def said(error: BaseException) -> str:
    """The first line of an error's message."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def bad_settings(error: BaseException) -> str:
    """The message for settings that the driver refuses. It may quote the URL after a colon, so only the words before
    the colon are repeated."""
    return f"its URL or the environment is not right: {said(error).partition(':')[0]}"
