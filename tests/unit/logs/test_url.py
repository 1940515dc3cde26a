from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from everbell.errors import LogUnavailable, LogUnusable
from everbell.logs import zookeeper_address
from everbell.logs.url import open_log
from tests.services.process import free_port

SECRET = "s3cr3t"


def opening(url: str) -> None:
    async def main() -> None:
        log = await open_log(url, timeout_s=0.5)
        await log.close()

    asyncio.run(main())


def test_logs_that_need_no_server_open(tmp_path: Path) -> None:
    opening("memory:")
    opening(f"rocksdb:{tmp_path}")
    assert (tmp_path / "cluster").is_dir()


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "there are"),
        ("memory", "there are"),
        ("memory:x", "there are"),
        (f"kafka://u:{SECRET}@host", "there are"),
        ("rocksdb:", "needs a directory"),
        ("postgresql://", "names no database"),
        (f"postgresql://u:{SECRET}@[host/db", "write it like"),
        (f"postgresql://u:{SECRET}@host/db?{SECRET}", "write it like"),
        (f"postgresql://u:{SECRET}@host/db?schema=Big", "lower-case letters"),
        (f"postgresql://u:{SECRET}@host/db?schema=pg_x", "lower-case letters"),
        (f"postgresql://u:{SECRET}@host/db?sslmode=nonsense", "is not right"),
        (f"postgresql://u:{SECRET}@host:port/db", "write it like"),
        (f"postgresql://u:{SECRET}/{SECRET}@host/db", "write it like"),
        (f"postgresql://u:1/{SECRET}@host/db", "write it like"),
        ("zookeeper:", "write it like"),
        ("zookeeper://", "write it like"),
        (f"zookeeper://u:{SECRET}@h:1,,h:2/x", "write it like"),
        (f"zookeeper://u:{SECRET}@h:1/x?y=1", "write it like"),
        (f"zookeeper://u:{SECRET}@h:1/../x", "letters, digits"),
        (f"zookeeper://{SECRET}@h:1/x", "give both"),
    ],
)
def test_a_wrong_url_is_refused_with_advice_and_without_its_password(url: str, advice: str) -> None:
    with pytest.raises(LogUnusable, match=advice) as refused:
        opening(url)
    seen: BaseException | None = refused.value
    while seen is not None:
        assert SECRET not in f"{seen!r} {seen}"
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


@pytest.mark.parametrize("scheme", ["postgresql", "zookeeper"])
def test_a_server_that_is_away_is_worth_another_try(scheme: str) -> None:
    url = f"{scheme}://u:{SECRET}@127.0.0.1:{free_port()}/everbell"
    with pytest.raises(LogUnavailable, match="check that it runs") as refused:
        opening(url)
    assert SECRET not in str(refused.value)
    assert "127.0.0.1" in str(refused.value)


def test_an_address_of_zookeeper_is_taken_apart() -> None:
    address = zookeeper_address.read_address("zookeeper://u:a%3Ab%40@h1:1,[::1]:2/a/b/")
    assert (address.hosts, address.root, address.user) == ("h1:1,[::1]:2", "/a/b", ("u", "a:b@"))
    assert "a:b@" not in repr(address) + address.name
    plain = zookeeper_address.read_address("zookeeper://host")
    assert (plain.hosts, plain.root, plain.user) == ("host", "/everbell", None)


@pytest.mark.parametrize(("scheme", "driver"), [("postgresql", "asyncpg"), ("zookeeper", "kazoo")])
def test_a_missing_driver_is_named(scheme: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("everbell.logs.postgres", "everbell.logs.zookeeper")
    for name in [name for name in sys.modules if name.startswith((driver, *ours))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(LogUnusable, match="pip install 'everbell"):
        opening(f"{scheme}://host/db")
