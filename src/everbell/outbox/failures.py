"""Why an outbox cannot be used, in words that say how to mend it."""

from __future__ import annotations

import asyncpg

from everbell.stores.postgres.failures import said

_TO_MEND = {
    "28000": "check the user's name, and the server's pg_hba.conf",
    "28P01": "correct the password in the URL, in PGPASSWORD or in the password file",
    "3D000": "create the database, or name another one",
    "3F000": "install it with: everbell outbox install URL",
    "42P01": "install it with: everbell outbox install URL",
    "42883": "install it with: everbell outbox install URL",
    "42501": "grant the rights of a collector: everbell outbox sql --collector ROLE shows them",
}


def trouble_of(error: BaseException, name: str) -> str:
    """One line about an error of PostgreSQL, its driver or the network."""
    if isinstance(error, asyncpg.PostgresError):
        advice = _TO_MEND.get(error.sqlstate or "")
        return f"the outbox {name}: {said(error)}" + (f": {advice}" if advice else "")
    reason = "no answer in time" if isinstance(error, TimeoutError) else said(error)
    return f"the outbox {name} cannot be reached ({reason}): check that the database runs, and the address"
