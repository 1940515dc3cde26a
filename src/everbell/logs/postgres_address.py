"""The address of a log in PostgreSQL: what its URL says, and how to speak of it without giving away a password.

    postgresql://user:password@host:5432/database?schema=everbell&sslmode=verify-full

Everything but `schema` is what PostgreSQL's own tools understand, several hosts included; the environment (PGHOST,
PGPASSWORD, PGPASSFILE …) fills in what is not said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from everbell.errors import LogUnusable

_EXAMPLE = "postgresql://user:password@host:5432/database?schema=everbell"
_HOST = re.compile(r"(\[[^\]]*\]|[^][:@]*)(:[0-9]{1,5})?")
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}")
"""Short enough that the name of the channel of notifications, which has a prefix, is not cut."""


@dataclass(frozen=True)
class Address:
    """Where the log is. `dsn` may have a password in it, `name` never has: show only that."""

    dsn: str = field(repr=False)
    schema: str
    name: str

    @property
    def channel(self) -> str:
        """The channel of notifications, which belong to a database and not to a schema."""
        return f"everbell_log_{self.schema}"


def read_address(url: str) -> Address:
    """Raises `LogUnusable`, and does not repeat the URL: it may have a password in it."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        place = parts.netloc.rpartition("@")[2]
        # A password with a / in it would be taken for a part of the path.
        if "@" in parts.path or not all(_HOST.fullmatch(host) for host in place.split(",")):
            raise ValueError("not a host")
    except ValueError:
        # The original error would quote parts of the URL.
        raise LogUnusable(f"the URL of the log cannot be read: write it like {_EXAMPLE}") from None
    if not parts.netloc and not parts.path.strip("/") and not options:
        raise LogUnusable(f"the URL of the log names no database: write it like {_EXAMPLE}")
    schema = dict(options).get("schema", "everbell")
    if not _SCHEMA.fullmatch(schema):
        raise LogUnusable(
            f"{schema!r} cannot be the schema of a log: take at most 48 small letters, digits and _, "
            "as in schema=everbell"
        )
    rest = urlencode([(name, value) for name, value in options if name != "schema"])
    database = parts.path.strip("/")
    return Address(
        parts._replace(query=rest, fragment="").geturl(),
        schema,
        f"PostgreSQL at {place or 'the default host'}, database {database or 'of the user'}, schema {schema}",
    )
