"""Errors of PostgreSQL, its driver and the network, translated for callers of a log.

An error that the server reports ended the statement without effect. If the connection is lost, or the server is
shutting down, the statement may have been committed without an answer.
"""

from __future__ import annotations

import asyncpg

from everbell.errors import LogError, LogUnavailable, LogUncertain, LogUnusable
from everbell.stores.postgres.failures import TO_MEND, bad_settings, said

_UNCERTAIN_CLASSES = ("08", "57", "58", "XX")


def log_error(error: BaseException, name: str) -> LogError:
    """The error for the caller of a log at the address called `name`."""
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return LogUnusable(f"{name}: {bad_settings(error)}")
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in TO_MEND:
        return LogUnusable(f"{name}: {said(error)}: {TO_MEND[error.sqlstate]}")
    reason = "no answer in time" if isinstance(error, TimeoutError) else said(error)
    return LogUnavailable(f"{name} cannot be used now ({reason}): check that it runs and can be reached; trying again")


def append_error(error: BaseException, name: str) -> LogError:
    """The error for a command that was sent to be appended."""
    if isinstance(error, asyncpg.PostgresError) and not str(error.sqlstate).startswith(_UNCERTAIN_CLASSES):
        return log_error(error, name)
    return LogUncertain(f"{name}: the answer to an append was lost ({said(error)}): repeat the command")
