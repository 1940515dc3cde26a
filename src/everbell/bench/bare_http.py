"""The cost of HTTP without a scheduler, in its own process.

`server` is our HTTP server with a constant answer; `protocol` is a minimal uvloop protocol around httptools.
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools
import msgspec
import uvloop

from everbell.bench.bodies import payload
from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.plans import BareHttpPlan
from everbell.http.server import HttpRequest, HttpResponse, HttpServer, ServerLimits
from everbell.node.process import collect_rarely

_ANSWER = HttpResponse(201, msgspec.json.encode({"id": "eb_" + "x" * 32, "status": "scheduled", "payload": payload(1)}))


def _constant(_: HttpRequest) -> HttpResponse:
    return _ANSWER


class Bare(asyncio.Protocol):
    _wire = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(_ANSWER.body),
        _ANSWER.body,
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        assert self._transport is not None
        self._transport.write(self._wire)


async def serve(plan: BareHttpPlan) -> None:
    """Serve until standard input ends."""
    if plan.kind == "server":
        server = HttpServer(_constant, limits=ServerLimits())
        await server.start(("127.0.0.1", 0))
        say({"port": server.port})
    else:
        listener = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
        say({"port": listener.sockets[0].getsockname()[1]})
    async for _ in lines_told():
        pass


if __name__ == "__main__":
    plan = plan_told(BareHttpPlan)
    collect_rarely()
    uvloop.run(serve(plan))
