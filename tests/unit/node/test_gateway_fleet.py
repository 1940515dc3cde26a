"""Gateways are kept alive, even if one cannot start for a moment."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from everbell.core.request import Request
from everbell.node.gateway_fleet import Gateways
from everbell.node.settings import load


async def nobody_asks(request: Request[Any], /) -> Any:
    raise AssertionError("nobody asks")


def test_a_node_that_is_to_stop_does_not_wait_for_gateways_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopping = asyncio.Event()

    async def never(*arguments: Any, **options: Any) -> Any:
        stopping.set()  # As if it were told so meanwhile.
        raise OSError(24, "Too many open files")

    async def main() -> None:
        settings = load({"store": "memory:", "gateways": "2"}, {}, None)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            gateways = Gateways(settings, listener, nobody_asks, stopping, lambda number: None)
            await asyncio.wait_for(gateways.start(), 30)
            await gateways.stop(0)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    asyncio.run(main())


def test_the_connection_count_of_a_gateway_that_ended_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.node.gateway_fleet._RESTART_S", 3_600)
    begin = asyncio.create_subprocess_exec

    async def briefly(*arguments: Any, **options: Any) -> Any:
        return await begin(sys.executable, "-c", "pass", **options)

    async def main() -> None:
        settings = load({"store": "memory:", "gateways": "2"}, {}, None)
        ended: list[int] = []
        both = asyncio.Event()

        def on_end(number: int) -> None:
            ended.append(number)
            if len(ended) == 2:
                both.set()

        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            gateways = Gateways(settings, listener, nobody_asks, asyncio.Event(), on_end)
            board = gateways._counts
            assert board is not None
            for number in range(2):
                board.write(number, 0)
            await asyncio.wait_for(gateways.start(), 30)
            await asyncio.wait_for(both.wait(), 30)
            board.write(0, 7)
            assert board.is_fewest(0)
            await gateways.stop(0)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", briefly)
    asyncio.run(main())


def test_a_gateway_that_cannot_be_started_for_a_moment_is_started_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("everbell.node.gateway_fleet._RESTART_S", 0)
    begin = asyncio.create_subprocess_exec
    tries: list[tuple[Any, ...]] = []

    async def rarely(*arguments: Any, **options: Any) -> Any:
        tries.append(arguments)
        if len(tries) < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await begin(sys.executable, "-c", "input()", **options)

    async def main() -> None:
        settings = load({"store": "memory:", "gateways": "1"}, {}, None)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            gateways = Gateways(settings, listener, nobody_asks, asyncio.Event(), lambda number: None)
            await asyncio.wait_for(gateways.start(), 30)
            await gateways.stop(0)
        assert len(tries) >= 3

    monkeypatch.setattr(asyncio, "create_subprocess_exec", rarely)
    asyncio.run(main())
