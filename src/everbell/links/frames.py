"""A stream socket that carries frames: a length of four bytes, and as many bytes of MessagePack."""

from __future__ import annotations

import asyncio
import struct
from typing import cast

from everbell.links.wire import encode_into

_LENGTH = struct.Struct(">I")


class Frames(asyncio.Protocol):
    """Cuts the stream into frames."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # The received bytes of an incomplete frame.
        self._held = 0  # The number of these bytes.
        self._wanted = _LENGTH.size  # The number of bytes that complete the next frame, or its length.
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports have no common base class.

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        # A frame may have half a megabyte and arrives in pieces: they are joined once, and read in place.
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._wanted:
            return
        whole = data if len(self._pieces) == 1 else b"".join(self._pieces)
        view, start, end = memoryview(whole), 0, 0
        while len(whole) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(whole, start)[0]
            if len(whole) < end:
                break
            self.frame(view[start + _LENGTH.size : end])
            start = end
        rest = whole[start:]
        self._pieces, self._held = [rest] if rest else [], len(rest)
        self._wanted = max(end - start, _LENGTH.size)

    def frame(self, frame: memoryview) -> None:
        raise AssertionError("subclasses read frames")

    def send(self, message: object) -> None:
        if self.transport is not None and not self.transport.is_closing():
            frame = bytearray(_LENGTH.size)
            encode_into(message, frame, _LENGTH.size)
            _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
            self.transport.write(frame)
