"""The directories that a store accepts or refuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from everbell.errors import StoreCorrupt, StoreUnusable
from everbell.stores.rocksdb.directory import claim
from everbell.stores.rocksdb.store import RocksdbStore


def close(store: RocksdbStore) -> None:
    asyncio.run(store.close())


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A store that was created and closed."""
    close(RocksdbStore(str(tmp_path / "store"), partitions=16, created_at=123))
    return tmp_path / "store"


def test_the_marker_has_format_and_partitions(made: Path) -> None:
    marker = json.loads((made / "everbell.json").read_text())
    assert marker == {"format": 1, "partitions": 16, "created_at": 123}


def test_a_store_keeps_its_number_of_partitions(made: Path) -> None:
    store = RocksdbStore(str(made), partitions=99)
    assert store.partitions == 16
    close(store)


def test_an_empty_directory_may_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()  # Every new file system has it.
    close(RocksdbStore(str(tmp_path)))


def test_a_directory_with_other_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(StoreUnusable, match="not empty and not a store"):
        RocksdbStore(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="cannot be used as a store"):
        RocksdbStore(str(tmp_path / "file"))


def test_an_interrupted_creation_starts_again(tmp_path: Path) -> None:
    claim(tmp_path, 16, 0)
    store = RocksdbStore(str(tmp_path), partitions=8)
    assert store.partitions == 8
    close(store)


def test_a_newer_format_is_refused(made: Path) -> None:
    (made / "everbell.json").write_text('{"format": 7, "partitions": 16, "created_at": 0}')
    with pytest.raises(StoreUnusable, match=r"newer Everbell \(format 7, this one reads up to 1\): install a newer"):
        RocksdbStore(str(made))


def test_an_unreadable_marker_is_damage(made: Path) -> None:
    (made / "everbell.json").write_text("{")
    with pytest.raises(StoreCorrupt, match="restore the store from a backup"):
        RocksdbStore(str(made))


def test_a_marker_of_another_store_is_damage(made: Path) -> None:
    (made / "everbell.json").write_text('{"format": 1, "partitions": 17, "created_at": 0}')
    with pytest.raises(StoreCorrupt, match="does not match its marker"):
        RocksdbStore(str(made))


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.log"])
def test_a_store_that_lost_a_file_is_not_created_again(made: Path, pattern: str) -> None:
    for path in made.glob(pattern):
        path.unlink()
    before = sorted(path.name for path in made.iterdir())
    with pytest.raises(StoreCorrupt, match=r"is missing: restore the store from a backup"):
        RocksdbStore(str(made))
    assert sorted(path.name for path in made.iterdir()) == before


def test_an_empty_current_is_damage(made: Path) -> None:
    (made / "CURRENT").write_text("")
    with pytest.raises(StoreCorrupt, match="restore the store from a backup"):
        RocksdbStore(str(made))


def test_a_store_cannot_be_opened_twice(made: Path) -> None:
    store = RocksdbStore(str(made))
    with pytest.raises(StoreUnusable, match="in use by another process"):
        RocksdbStore(str(made))
    program = "import sys; from everbell.stores.rocksdb.store import RocksdbStore; RocksdbStore(sys.argv[1])"
    other = subprocess.run([sys.executable, "-c", program, str(made)], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "in use by another process" in other.stderr
    close(store)
    close(RocksdbStore(str(made)))
