"""Gateways are kept alive, whatever keeps one from starting for a moment."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from everbell.server.gateways import Gateways
from everbell.settings import load


def test_a_gateway_that_cannot_be_started_for_a_moment_is_started_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("everbell.server.gateways._RESTART_S", 0)
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

            async def serve(method: str, arguments: tuple[Any, ...]) -> Any:
                raise AssertionError("nobody asks")

            gateways = Gateways(settings, listener, serve, asyncio.Event(), lambda number: None)
            await asyncio.wait_for(gateways.start(), 30)
            await gateways.stop(0)
        assert len(tries) >= 3

    monkeypatch.setattr(asyncio, "create_subprocess_exec", rarely)
    asyncio.run(main())
