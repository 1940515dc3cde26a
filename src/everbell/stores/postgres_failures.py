"""What the errors of PostgreSQL, of its driver and of the network mean to a store.

Three questions: was it made, is it worth another try, and what should a person do? An error that the server reports
while the connection stays usable ended the transaction: nothing was made. When the connection is gone, too, nobody
knows, unless it was lost before anything was sent.
"""

from __future__ import annotations

import asyncpg

from everbell.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnusable

_PASSING_CLASSES = {
    "08",  # connection exception
    "25",  # invalid transaction state: read-only, idle for too long
    "40",  # deadlock, serialization failure
    "53",  # out of connections or memory; a full disk is told apart
    "55",  # a lock was not available in time
    "EB",  # our own: the operation was given up
    "57",  # shutdown, starting up, statement timeout
}
_DISK_FULL = "53100"
_TO_MEND = {
    "28000": "the server refuses this user: look at its pg_hba.conf, and at the user's name",
    "28P01": "the password is wrong: correct it in the URL, in PGPASSWORD or in the password file",
    "3D000": "there is no such database: make it with CREATE DATABASE, or name another one",
    "3F000": "the schema is gone: restore it, or start with a new one",
    "42501": "the user may not do this: GRANT CREATE ON DATABASE to it, or make the schema and let the user own it",
    "42704": "take the option out of the URL",
    "42P01": "a table is gone: restore the schema from a backup",
}

Failure = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)
"""Whatever the driver raises that is not a mistake of ours."""


def store_error(error: BaseException, name: str) -> StoreError:
    """The error for the caller of a store; `name` is that of the store's address."""
    if isinstance(error, asyncpg.PostgresError):
        return _server_error(error, name)
    if isinstance(error, asyncpg.exceptions.TargetServerAttributeNotMatched):
        return StoreUnavailable(f"{name}: no server there takes writes at the moment: look for the primary")
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return StoreUnusable(f"{name}: its URL or the environment is not right: {_without_text(error)}")
    if isinstance(error, ValueError):
        return StoreError(f"{name} cannot hold this: {_said(error)}")
    reason = "no answer in time" if isinstance(error, TimeoutError) else _said(error)
    return StoreUnavailable(f"{name} cannot be reached ({reason}): check that it runs, and the address")


def _server_error(error: asyncpg.PostgresError, name: str) -> StoreError:
    state = error.sqlstate or ""
    if state == _DISK_FULL:
        return StoreFull(f"{name}: the disk of the database is full: make room")
    if state in _TO_MEND:
        return StoreUnusable(f"{name}: {_said(error)}: {_TO_MEND[state]}")
    if state[:2] in _PASSING_CLASSES:
        return StoreUnavailable(f"{name}: {_said(error)}")
    if state[:2] == "XX":
        return StoreCorrupt(f"{name}: {_said(error)}: look into the server's log, restore from a backup if need be")
    return StoreError(f"{name}: {_said(error)} ({state})")


def _said(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _without_text(error: BaseException) -> str:
    """The driver quotes the URL in some of its messages; the first words tell enough."""
    return _said(error).partition(":")[0]
