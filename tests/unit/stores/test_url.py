"""Opening stores by URL."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from everbell.errors import StoreUnusable
from everbell.stores.memory.store import MemoryStore
from everbell.stores.rocksdb.store import RocksdbStore
from everbell.stores.url import open_store


def test_a_rocksdb_url_names_a_directory(tmp_path: Path) -> None:
    store = open_store(f"rocksdb:{tmp_path}/deep/store", partitions=8)
    assert isinstance(store, RocksdbStore)
    assert store.partitions == 8
    asyncio.run(store.close())
    assert (tmp_path / "deep" / "store" / "everbell.json").exists()


def test_a_memory_url_opens_a_store_that_cannot_be_backed_up() -> None:
    store = open_store("memory:", partitions=8)
    assert isinstance(store, MemoryStore)
    assert store.partitions == 8
    with pytest.raises(StoreUnusable, match="rocksdb:PATH"):
        asyncio.run(store.backup("anywhere"))


@pytest.mark.parametrize("url", ["", "sqlite:x", "rocksdb", "memory", "memory:x", "./data", "ROCKSDB:x"])
def test_an_unknown_url_is_refused_with_a_list_of_stores(url: str) -> None:
    with pytest.raises(StoreUnusable, match=r"rocksdb:PATH .* memory:"):
        open_store(url)


def test_a_password_in_a_mistyped_url_is_not_shown() -> None:
    with pytest.raises(StoreUnusable, match="'pgsql://host/database' names no store") as refused:
        open_store("pgsql://user:hush@host/database?password=hush")
    assert "hush" not in str(refused.value)


def test_postgresql_needs_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("everbell.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreUnusable, match=r"pip install 'everbell\[postgres\]'"):
        open_store("postgresql://user@host/database")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_postgresql_url_needs_an_address(scheme: str) -> None:
    with pytest.raises(StoreUnusable, match="names no database"):
        open_store(f"{scheme}://")


def test_a_rocksdb_url_needs_a_directory() -> None:
    with pytest.raises(StoreUnusable, match="needs a directory"):
        open_store("rocksdb:")


@pytest.mark.parametrize("partitions", [0, -1, 65_536])
def test_the_number_of_partitions_has_limits(tmp_path: Path, partitions: int) -> None:
    with pytest.raises(StoreUnusable, match="1 to 65535 partitions"):
        open_store(f"rocksdb:{tmp_path}", partitions=partitions)
