"""Fences for receivers: refuse a delivery of a node that is no longer the owner of a key.

Epochs of a key never decrease: a later owner has a higher one. After a node dies, one of its requests may still be on
its way. A receiver that refuses epochs below the last one that it saw for a key can declare that in the tenant's policy
(`fencing = "receiver"`). Then the next owner need not wait for such requests.

The check and the effect of the delivery must be one step. Otherwise an old delivery that was admitted just before can
take effect after a later one. `SqlKeyFence` makes them one step if the effect is in the same transaction: the row of
the key stays locked until the commit.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from everbell.errors import InvalidInput

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_PLACEHOLDERS = {"format": "%s", "pyformat": "%s", "qmark": "?"}


def key_and_epoch(headers: Mapping[str, str]) -> tuple[str, int] | None:
    """The key and the epoch in the headers of a delivery over HTTP; None if the event has no key.

    Names of headers have to be in lower case, or the mapping has to ignore case, as those of web frameworks do.
    """
    key, epoch = headers.get("ce-partitionkey"), headers.get("everbell-epoch")
    return None if key is None or epoch is None else (unquote(key), int(epoch))


class KeyFence:
    """The last epoch of each key, in the memory of this process: for receivers that are one process.

    It remembers the `keys_max` keys that were seen last, and admits every epoch of a key that it has forgotten.
    """

    def __init__(self, keys_max: int = 100_000) -> None:
        self._keys_max = keys_max
        self._epochs: OrderedDict[tuple[str, str], int] = OrderedDict()

    def admits(self, key: str, epoch: int, tenant: str = "default") -> bool:
        """Whether the delivery may take effect. Remembers its epoch."""
        name = tenant, key
        if epoch < self._epochs.get(name, 0):
            return False
        self._epochs[name] = epoch
        self._epochs.move_to_end(name)
        if len(self._epochs) > self._keys_max:
            self._epochs.popitem(last=False)
        return True


class SqlKeyFence:
    """The last epoch of each key, in a table of the receiver's own database (PostgreSQL, or SQLite from 3.35 on).

    `connection` is any DB-API connection: psycopg, sqlite3, Django's. With other libraries, run `create` and `admit`,
    the statements of this fence; `admit` takes tenant, key and epoch, and returns a row if the delivery is admitted.
    """

    def __init__(self, table: str = "everbell_fence", paramstyle: str = "format") -> None:
        """`paramstyle` is that of the library: `format` or `pyformat` for psycopg and Django, `qmark` for sqlite3."""
        if _TABLE.fullmatch(table) is None:
            raise InvalidInput(f"{table!r} is not the name of a table", "table")
        if paramstyle not in _PLACEHOLDERS:
            raise InvalidInput(f"{paramstyle!r} is none of {', '.join(_PLACEHOLDERS)}", "paramstyle")
        slot = _PLACEHOLDERS[paramstyle]
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {table} "
            "(tenant text NOT NULL, key text NOT NULL, epoch bigint NOT NULL, PRIMARY KEY (tenant, key))"
        )
        self.admit = (
            f"INSERT INTO {table} AS fence (tenant, key, epoch) VALUES ({slot}, {slot}, {slot}) "  # noqa: S608 -- checked above
            "ON CONFLICT (tenant, key) DO UPDATE SET epoch = excluded.epoch WHERE fence.epoch <= excluded.epoch "
            "RETURNING epoch"
        )

    def admits(self, connection: Any, key: str, epoch: int, tenant: str = "default") -> bool:
        """Whether the delivery may take effect, in the transaction that is open on the connection."""
        cursor = connection.cursor()
        try:
            cursor.execute(self.admit, (tenant, key, epoch))
            return cursor.fetchone() is not None
        finally:
            cursor.close()
