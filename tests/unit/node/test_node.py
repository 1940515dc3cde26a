"""A server that cannot begin says why on one line."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from everbell.errors import ClusterError, LogBroken
from everbell.logs.memory import SharedLog
from everbell.node.node import BROKEN_EXIT, HALTED_EXIT, Node, announce
from everbell.node.settings import Settings, load
from everbell.node.tenant_tables import SettingsError
from everbell.stores.memory.store import MemoryStore


def settings(**flags: str) -> Settings:
    return load({"store": "memory:", **flags}, {}, None)


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        node = Node(settings(listen=f"127.0.0.1:{port}"), MemoryStore(), SharedLog().handle())
        with pytest.raises(SettingsError, match=rf"--listen: 127\.0\.0\.1:{port} cannot be had: .*another port"):
            asyncio.run(node.run(lambda url: None))


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (LogBroken("an fsync failed"), BROKEN_EXIT),
        (KeyError("a fault of ours"), BROKEN_EXIT),
        (ClusterError("another node has the name"), HALTED_EXIT),
    ],
)
def test_a_node_that_halts_says_whether_another_start_helps(reason: BaseException, code: int) -> None:
    class Idle:
        broken = None

        async def stop(self) -> bool:
            return True

    async def main() -> int:
        node = Node(settings(), MemoryStore(), SharedLog().handle())
        node._halt(reason)
        return await node._give_up(Idle())  # type: ignore[arg-type]

    assert asyncio.run(main()) == code


def test_a_ready_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "ready"
    with pytest.raises(SettingsError, match=r"--ready-file: .* cannot be written"):
        announce(settings(ready_file=str(missing)), "http://127.0.0.1:8420")
