"""A connection between a client and a server that a test can cut, even just before an answer comes back."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from tests.services.process import free_port


class Proxy:
    """`async with Proxy(port) as proxy:` forwards connections to `proxy.port` to a port of this machine."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.swallowed = 0
        """The number of connections that were cut instead of answered."""
        self._target = target
        self._swallow = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()

    def swallow_answers(self) -> None:
        """From now on, forward requests and end the connection instead of returning the answer."""
        self._swallow = True

    def heal(self) -> None:
        """Forward everything again."""
        self._swallow = False

    def cut(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connect(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        try:
            server_in, server_out = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            client_out.transport.abort()
            return
        pair = {client_out, server_out}
        self._writers |= pair
        pumps = [
            asyncio.create_task(self._pump(client_in, server_out, is_answer=False)),
            asyncio.create_task(self._pump(server_in, client_out, is_answer=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for writer in pair:
                writer.transport.abort()
            self._writers -= pair

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool) -> None:
        try:
            while data := await source.read(1 << 16):
                if is_answer and self._swallow:
                    self.swallowed += 1
                    return
                sink.write(data)
                await sink.drain()
        except OSError:
            return
