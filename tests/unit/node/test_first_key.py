"""Access before a server serves: it refuses to be open to strangers, and makes the first key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everbell.clock import SystemClock
from everbell.core.access import DOCUMENTS, Keyring, encode_key, new_key
from everbell.core.cluster import FoundCluster, PutDocument, encode_command
from everbell.entropy import SeededEntropy
from everbell.logs.memory import SharedLog
from everbell.node.first_key import ensure_operator, refuse_strangers
from everbell.node.settings import Settings, load
from everbell.node.tenant_tables import SettingsError
from tests.unit.api.keys_stage import MemoryKeys

CLOCK = SystemClock()


def settings(**flags: str) -> Settings:
    return load({"store": "memory:", **flags}, {}, None)


def start(chosen: Settings, *, has_key: bool = False) -> None:
    async def main() -> None:
        log = SharedLog().handle()
        if has_key:
            key, _ = new_key(bytes(36), "*", ["admin"], 1_000)
            await log.append(encode_command(FoundCluster("cluster", 4)))
            await log.append(encode_command(PutDocument(DOCUMENTS + key.id, encode_key(key))))
        await refuse_strangers(chosen, log, CLOCK)

    asyncio.run(main())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.168.1.1:0", "[::]:0", "example.com:80"])
def test_strangers_need_keys(listen: str) -> None:
    with pytest.raises(SettingsError, match=r"--bootstrap-key.*--insecure"):
        start(settings(listen=listen))
    start(settings(listen=listen), has_key=True)
    start(settings(listen=listen, insecure="true"))
    start(settings(listen=listen, bootstrap_key="file"))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_on_loopback_there_are_none(listen: str) -> None:
    start(settings(listen=listen))


def ensure(keys: MemoryKeys, file: Path, seed: int = 1) -> Keyring:
    asyncio.run(ensure_operator(keys, str(file), CLOCK, SeededEntropy(seed)))
    return keys.ring()


def test_the_first_key_is_written_where_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    ring = ensure(keys := MemoryKeys(), file)

    key = ring.find(f"Bearer {file.read_text().strip()}")
    assert key is not None
    assert key.is_operator
    assert file.stat().st_mode & 0o777 == 0o600
    assert ensure(keys, file).keys == (key,), "with an operator's key, nothing happens"


def test_a_key_that_is_there_is_taken_so_that_all_nodes_may_have_one_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    _, text = new_key(bytes(range(36)), "*", ["admin"], 1)
    file.write_text(f"{text}\n")

    first, second = ensure(MemoryKeys(), file), ensure(MemoryKeys(), file)

    for ring in (first, second):
        assert ring.find(f"Bearer {text}") in ring.operators


def test_a_key_that_was_written_but_never_counted_counts_with_the_next_start(tmp_path: Path) -> None:
    class Broken(MemoryKeys):
        async def put(self, key: object) -> None:
            raise OSError("the log is away")

    with pytest.raises(OSError, match="away"):
        ensure(Broken(), tmp_path / "key")
    assert ensure(MemoryKeys(), tmp_path / "key").operators


@pytest.mark.parametrize("content", ["", "secret", "evk_short", "\xe4"])
def test_a_file_with_something_else_is_left_alone(content: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"--bootstrap-key: .* no access key"):
        ensure(MemoryKeys(), file)
    assert file.read_text() == content


def test_a_key_that_was_revoked_does_not_come_back(tmp_path: Path) -> None:
    file = tmp_path / "key"
    keys = MemoryKeys()
    (key,) = ensure(keys, file).keys
    asyncio.run(keys.put(type(key)(key.id, key.digest, key.tenant, key.scopes, key.created_at, revoked_at=1)))
    with pytest.raises(SettingsError, match="was revoked"):
        ensure(keys, file)
    file.unlink()
    assert len(ensure(keys, file, 2).operators) == 1, "this is how one gets in again after all keys were lost"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--bootstrap-key: .* cannot be written"):
        ensure(MemoryKeys(), tmp_path / "missing" / "key")
