"""HTTP/1.1 for a load generator, with as little work per request as possible, so that it does not measure itself.

It talks only to servers that it knows: every answer has a `content-length`, and nothing is pipelined. Requests are
built before the clock starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import cast

Next = Callable[[int, bytes], bytes | None]
"""Gets the status and the body of an answer; returns the next request. Empty: it comes later. None: there is none."""

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


def request(path: str, body: bytes, content_type: str = "application/json", token: str = "") -> bytes:
    """A complete POST, with the access key if there is one."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += f"authorization: Bearer {token}\r\n" if token else ""
    fields = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + fields).encode("ascii") + body


def split_message(data: bytes) -> tuple[int, int] | None:
    """The start and end of the first message's body; None while it is incomplete."""
    head = data.find(_HEAD_END)
    if head < 0:
        return None
    at = data.find(_LENGTH, 0, head)
    start = head + 4
    if at < 0:
        return start, start
    at += len(_LENGTH)
    end = start + int(data[at : data.index(b"\r\n", at)])
    return (start, end) if len(data) >= end else None


class Caller(asyncio.Protocol):
    """One connection with one request in flight; `closed` is done after the last answer."""

    def __init__(self, first: bytes, next_request: Next) -> None:
        self._first = first
        self._next = next_request
        self._pieces: list[bytes] = []
        self._missing = 0
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not registered as such.

    def begin(self) -> None:
        self.send(self._first)

    def send(self, request: bytes) -> None:
        """Send a request; the one before it has been answered."""
        assert self._transport is not None
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._pieces)
            self._pieces = []
        bounds = split_message(data)
        if bounds is None:
            self._pieces = [data]
            self._missing = _missing(data)
            return
        following = self._next(int(data[9:12]), data[bounds[0] : bounds[1]])
        assert self._transport is not None
        if following is None:
            self._transport.close()
        elif following:
            self._transport.write(following)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def _missing(data: bytes) -> int:
    """The number of bytes that are known to be missing; joining the pieces before they arrive would be wasted."""
    head = data.find(_HEAD_END)
    at = data.find(_LENGTH, 0, head) if head >= 0 else -1
    if at < 0:
        return 0
    at += len(_LENGTH)
    return head + 4 + int(data[at : data.index(b"\r\n", at)]) - len(data)


async def call_all(host: str, ports: Sequence[int], firsts: list[bytes], next_request: Next) -> None:
    """Keep one connection busy for each of the first requests, until `next_request` has no more for any of them."""
    loop = asyncio.get_running_loop()
    callers: list[Caller] = []
    for first, port in zip(firsts, cycle(ports), strict=False):
        _, caller = await loop.create_connection(partial(Caller, first, next_request), host, port)
        callers.append(caller)
    for caller in callers:
        caller.begin()
    await asyncio.gather(*(caller.closed for caller in callers))
