"""The end of a link that answers: the engine's end of a gateway's link, or the node that another node asks."""

from __future__ import annotations

import asyncio
import logging

from msgspec import Raw

from everbell.core.request import Ask
from everbell.errors import EverbellError, Overloaded
from everbell.links.frames import Frames
from everbell.links.wire import CODECS, NOTHING, Answer, Codec, pack_error, read_asked

_log = logging.getLogger("everbell.server")


class LinkServer(Frames):
    """Answers requests."""

    def __init__(self, ask: Ask, *, for_peers: bool = False) -> None:
        """With `for_peers`, only requests that another node may ask are answered."""
        super().__init__()
        self._ask = ask
        self._for_peers = for_peers
        self._tasks: set[asyncio.Task[None]] = set()
        self.linked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end has sent its first request, or is gone."""

    def frame(self, frame: memoryview) -> None:
        if not self.linked.done():
            self.linked.set_result(None)
        asked = read_asked(frame)
        codec = CODECS.get(asked.tag)
        if codec is None:
            unknown = f"this node's version does not know the request {asked.tag}; nothing was done; update this node"
            self._send_error(asked.number, Overloaded(unknown))
        elif self._for_peers and not codec.kind.for_peers:
            self._send_error(asked.number, Overloaded(f"{asked.tag} is not for other nodes"))
        else:
            task = asyncio.get_running_loop().create_task(self._answer(asked.number, codec, asked.fields))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self.linked.done():
            self.linked.set_result(None)
        for task in self._tasks:
            task.cancel()

    async def _answer(self, number: int, codec: Codec, fields: Raw) -> None:
        try:
            request = codec.read(fields)
            del fields  # Otherwise a waiting request would keep all bytes of its read in memory.
            answer = self._ask(request)
            del request
            self.send(codec.reply(number, await answer))
        except EverbellError as refused:
            self._send_error(number, refused)
        except Exception as error:
            # The other end must not wait for ever; the details are for the log.
            _log.exception("a request failed: %s", codec.kind.tag)
            self._send_error(number, EverbellError(f"{codec.kind.tag} failed: {error!r}"))

    def _send_error(self, number: int, error: EverbellError) -> None:
        self.send(Answer(number, NOTHING, pack_error(error)))
