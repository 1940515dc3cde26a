"""The row makers of all stores, by the name of their format: a gateway knows only the name."""

from __future__ import annotations

from everbell.stores.memory.row_maker import MemoryRowMaker
from everbell.stores.port import RowMaker
from everbell.stores.rocksdb.row_maker import RocksdbRowMaker

_ROW_MAKERS: dict[str, RowMaker] = {maker.format: maker for maker in (MemoryRowMaker(), RocksdbRowMaker())}


def row_maker(format: str) -> RowMaker:
    """The row maker of a format that an engine of the same version has named."""
    return _ROW_MAKERS[format]
