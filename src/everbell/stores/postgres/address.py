"""The address of a store or log in PostgreSQL.

    postgresql://user:password@host:5432/database?schema=everbell&sslmode=verify-full

PostgreSQL's own tools understand everything except `schema`, several hosts included. The environment (PGHOST,
PGPASSWORD, PGPASSFILE …) provides the missing parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from everbell.errors import StoreUnusable

_EXAMPLE = "postgresql://user:password@host:5432/database?schema=everbell"
_HOST = re.compile(r"([^:]*|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class PostgresAddress:
    """`dsn` may contain a password. `name` never does, so messages show only the name."""

    dsn: str = field(repr=False)
    schema: str
    name: str


def read_address(url: str) -> PostgresAddress:
    """Raises `StoreUnusable`, without the URL in the message: it may contain a password."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # The original error would quote parts of the URL.
        raise StoreUnusable(f"the URL of PostgreSQL cannot be read: write it like {_EXAMPLE}") from None
    place = parts.netloc.rpartition("@")[2]
    # A password with a / in it ends up in the host or in the path, so the message repeats neither.
    if "@" in parts.path or not all(map(_HOST.fullmatch, place.split(","))):
        raise StoreUnusable(
            f"the URL of PostgreSQL has no host, host:port or several of them: write it like {_EXAMPLE}"
        )
    if not parts.netloc and not parts.path.strip("/") and not options:
        raise StoreUnusable(f"the URL of PostgreSQL names no database: write it like {_EXAMPLE}")
    schema = dict(options).get("schema", "everbell")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise StoreUnusable(
            f"{schema!r} cannot be the schema: use lower-case letters, digits and _, as in schema=everbell"
        )
    rest = urlencode([(name, value) for name, value in options if name != "schema"])
    database = parts.path.strip("/")
    return PostgresAddress(
        f"postgresql://{parts.netloc}{parts.path}?{rest}",
        schema,
        f"PostgreSQL at {place or 'the default host'}, database {database or 'of the user'}, schema {schema}",
    )
