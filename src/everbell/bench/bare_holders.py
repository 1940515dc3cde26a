"""The least work of replicas, without a scheduler: a loop sends events to three processes and waits for two of them.

Without ports in its plan the process is a holder: it keeps the bytes of every message, or reads the events and keeps
each by a number, and answers. With ports it is the loop.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from itertools import count
from time import perf_counter, process_time
from typing import cast

import msgspec
import uvloop

from everbell.bench.bodies import lines_of
from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.plans import BareHoldersPlan, Sent
from everbell.node.process import collect_rarely

_LENGTH = struct.Struct(">I")
_LANES = 6
_MAJORITY = 2
_PREPARED = 32


class Messages(asyncio.Protocol):
    """Messages behind their lengths."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not registered as such.

    def data_received(self, data: bytes) -> None:
        rest = self._rest
        rest += data
        while len(rest) >= _LENGTH.size and len(rest) >= (end := _LENGTH.size + _LENGTH.unpack_from(rest)[0]):
            message = bytes(rest[_LENGTH.size : end])
            del rest[:end]
            self.take(message)

    def take(self, message: bytes) -> None:
        raise AssertionError("subclasses take messages")

    def send(self, message: bytes) -> None:
        assert self.transport is not None
        self.transport.write(_LENGTH.pack(len(message)) + message)


class BareHolder(Messages):
    """Keeps messages, and answers each with nothing."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self._read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode_lines if reads else None
        self._kept: dict[int, object] = {}
        self._numbers = count()

    def take(self, message: bytes) -> None:
        if self._read is None:
            self._kept[next(self._numbers)] = message
        else:
            for event in self._read(message):
                self._kept[next(self._numbers)] = {name: bytes(value) for name, value in event.items()}
        self.send(b"")


class BareSender(Messages):
    """Sends messages to one holder, which answers in order."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[asyncio.Future[None]] = []

    def ask(self, message: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self.send(message)
        return future

    def take(self, message: bytes) -> None:
        self._asked.pop(0).set_result(None)


async def hold(plan: BareHoldersPlan) -> None:
    """Hold until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BareHolder(reads=plan.reads), "127.0.0.1", 0)
    say({"port": server.sockets[0].getsockname()[1]})
    async for _ in lines_told():
        pass


async def send(plan: BareHoldersPlan) -> None:
    """Send as many messages as each line says; a message counts when a majority has answered."""
    loop = asyncio.get_running_loop()
    senders = [(await loop.create_connection(BareSender, "127.0.0.1", port))[1] for port in plan.ports]
    lines = lines_of(_PREPARED * plan.batch, [0] * (_PREPARED * plan.batch), "http://127.0.0.1:1/bell")
    bodies = [b"\n".join(lines[at : at + plan.batch]) for at in range(0, len(lines), plan.batch)]
    say({"ready": True})
    async for line in lines_told():
        say(await _send_all(senders, bodies, int(line), plan.batch))


async def _send_all(senders: Sequence[BareSender], bodies: Sequence[bytes], wanted: int, batch: int) -> Sent:
    start, cpu, left, late = perf_counter(), process_time(), wanted, set[asyncio.Future[None]]()

    async def keep_busy() -> None:
        nonlocal left, late
        while left > 0:
            left -= 1
            asked = {sender.ask(bodies[left % len(bodies)]) for sender in senders}
            while len(asked) > len(senders) - _MAJORITY:
                _, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            late |= asked

    await asyncio.gather(*(keep_busy() for _ in range(_LANES)))
    await asyncio.gather(*late)
    return Sent(perf_counter() - start, wanted, wanted * batch, 0, process_time() - cpu)


if __name__ == "__main__":
    plan = plan_told(BareHoldersPlan)
    collect_rarely()
    uvloop.run(send(plan) if plan.ports else hold(plan))
