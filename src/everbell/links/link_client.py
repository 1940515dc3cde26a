"""The end of a link that sends requests: a gateway, or a node that asks another node."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec

from everbell.core.request import Request
from everbell.errors import OutcomeUnknown, Overloaded
from everbell.links.frames import Frames
from everbell.links.wire import CODECS, Codec, read_reply, unpack_error

A = TypeVar("A")


class LinkClient(Frames):
    """Sends requests, and hands out the answers."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._pending: dict[int, tuple[Codec, asyncio.Future[Any]]] = {}

    def ask(self, request: Request[A], /) -> asyncio.Future[A]:
        """The future has the answer, or raises the error of the other end."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        if self.lost.done():
            future.set_exception(Overloaded("the engine is gone; nothing of this request is known to be stored"))
            return future
        self._number += 1
        codec = CODECS[request.tag]
        self._pending[self._number] = (codec, future)
        self.send(codec.message(self._number, request))
        return future

    def frame(self, frame: memoryview) -> None:
        reply = read_reply(frame)
        codec, future = self._pending.pop(reply.number)
        if future.done():
            return
        if reply.error is not None:
            future.set_exception(unpack_error(reply.error))
            return
        try:
            future.set_result(codec.read_answer(reply.result))
        except msgspec.MsgspecError:
            tag = codec.kind.tag
            future.set_exception(
                OutcomeUnknown(f"the answer to {tag} has the format of another version: check the event, or try again")
            )

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for _, future in self._pending.values():
            if not future.done():
                future.set_exception(
                    OutcomeUnknown("the engine ended before it answered; with an id of your own, try again")
                )
        self._pending.clear()
