"""What the errors of PostgreSQL, of its driver and of the network mean to a log.

An error that the server reports ended the statement: nothing was made. Two kinds are different: when the connection
is gone, and when the server itself is going, a statement may have been committed without its answer.
"""

from __future__ import annotations

import asyncpg

from everbell.errors import LogError, LogUnavailable, LogUncertain, LogUnusable

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)
"""Whatever the driver raises that is not a mistake of ours; time-outs are of `OSError`."""

_UNCERTAIN_CLASSES = ("08", "57", "58", "XX")
_TO_MEND = {
    "28000": "look at the user's name, and at the server's pg_hba.conf",
    "28P01": "correct the password in the URL, in PGPASSWORD or in the password file",
    "3D000": "make the database with CREATE DATABASE, or name another one",
    "3F000": "the schema is gone: restore it, or begin with a new one",
    "42501": "GRANT CREATE ON DATABASE to the user, or make the schema and let the user own it",
    "42704": "take this option out of the URL",
    "42P01": "a table is gone: restore the schema from a backup",
}


def log_error(error: BaseException, name: str) -> LogError:
    """The error for the caller of a log; `name` is that of its address."""
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        # The driver quotes the URL in some of its messages; the first words tell enough.
        return LogUnusable(f"{name}: its URL or the environment is not right: {_said(error).partition(':')[0]}")
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in _TO_MEND:
        return LogUnusable(f"{name}: {_said(error)}: {_TO_MEND[error.sqlstate]}")
    reason = "no answer in time" if isinstance(error, TimeoutError) else _said(error)
    return LogUnavailable(f"{name} cannot be used now ({reason}): check that it runs and can be reached; trying again")


def append_error(error: BaseException, name: str) -> LogError:
    """The same, for a command that was sent to be appended."""
    if isinstance(error, asyncpg.PostgresError) and not str(error.sqlstate).startswith(_UNCERTAIN_CLASSES):
        return log_error(error, name)
    return LogUncertain(f"{name}: the answer to an append was lost ({_said(error)}): repeat the command")


def _said(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
