"""A TCP proxy that decides for each request whether the request arrives, and whether its answer does.

The proxy decides about each read from a client separately:

    PASS      the request goes on to the server
    CUT       the request is lost: both connections end
    DEAFEN    the request arrives, but when the server answers, the client's connection ends and the answer is lost
    HOLD      the client's connection ends; `release` sends the request to the server later
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Self


class Fate(Enum):
    """What the proxy does with a request."""

    PASS = 1
    CUT = 2
    DEAFEN = 3
    HOLD = 4


class FatefulProxy:
    """`async with FatefulProxy(port) as proxy:`; clients connect to `proxy.port`."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.fates: list[Fate] = []
        """The decisions other than PASS, in order."""
        self._server_port = server_port
        self._judge: Callable[[bytes], Fate] = _pass
        self._listener: asyncio.Server | None = None
        self._held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def once(self, fate: Fate, marker: bytes = b"") -> asyncio.Event:
        """Do this to the next read that contains the marker; the returned event is set when it happens."""
        happens = asyncio.Event()

        def judge(data: bytes) -> Fate:
            if marker not in data:
                return Fate.PASS
            self._judge = _pass
            happens.set()
            return fate

        self._judge = judge
        return happens

    async def release(self) -> None:
        """Send the held request to the server, and wait until the server has answered or ended the connection."""
        while self._held:
            answers, server, data = self._held.pop()
            server.write(data)
            await answers.read(1)
            await _closed(server)

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._server_port)
            back = asyncio.create_task(_pass_on(answers, client))
            is_held = False
            try:
                is_held = await self._forward(requests, answers, server, back)
            finally:
                await _ended(back)
                if not is_held:
                    await _closed(server)
        except OSError:
            pass
        finally:
            await _closed(client)
            self._tasks.discard(task)

    async def _forward(
        self,
        requests: asyncio.StreamReader,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> bool:
        """Forward requests until the connection ends; returns whether the last request is held."""
        while data := await requests.read(1 << 20):
            fate = self._judge(data)
            if fate is not Fate.PASS:
                self.fates.append(fate)
                await _ended(back)
            if fate is Fate.HOLD:
                self._held.append((answers, server, data))
            if fate in (Fate.HOLD, Fate.CUT):
                return fate is Fate.HOLD
            server.write(data)
            await server.drain()
            if fate is Fate.DEAFEN:
                await answers.read(1)
                return False
        return False


def _pass(data: bytes) -> Fate:
    return Fate.PASS


async def _pass_on(answers: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    try:
        while data := await answers.read(1 << 20):
            client.write(data)
            await client.drain()
    except OSError:
        pass
    client.close()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return
