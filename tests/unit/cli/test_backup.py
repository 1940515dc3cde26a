"""`everbell backup`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from everbell.cli.main import main
from everbell.stores.rocksdb.store import RocksdbStore


def make_store(path: Path) -> None:
    async def make() -> None:
        await RocksdbStore(str(path), partitions=4).close()

    asyncio.run(make())


def test_a_store_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "data")
    assert main(["backup", "--store", f"rocksdb:{tmp_path}/data", f"{tmp_path}/copy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backup"] == f"rocksdb:{tmp_path}/copy"
    assert main(["backup", "--store", f"rocksdb:{tmp_path}/copy", f"{tmp_path}/second"]) == 0
    assert "use it with --store" in capsys.readouterr().out


def test_a_store_in_use_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def hold() -> int:
        store = RocksdbStore(str(tmp_path / "data"))
        try:
            return await asyncio.to_thread(main, ["backup", "--store", f"rocksdb:{tmp_path}/data", f"{tmp_path}/copy"])
        finally:
            await store.close()

    assert asyncio.run(hold()) == 1
    assert "is in use by another process: stop that one first" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("store", "says"), [("rocksdb:{}/nothing", "there is no store in"), ("postgresql://x", "only rocksdb:PATH")]
)
def test_a_store_that_cannot_be_copied_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], store: str, says: str
) -> None:
    assert main(["backup", "--store", store.format(tmp_path), f"{tmp_path}/copy"]) == 1
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_backup_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "data")
    (tmp_path / "copy").mkdir()
    assert main(["backup", "--store", f"rocksdb:{tmp_path}/data", f"{tmp_path}/copy"]) == 1
    assert "exists already" in capsys.readouterr().err
