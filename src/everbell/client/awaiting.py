"""The client for programs that await: `AsyncClient`.

A thin shell, like `blocking`: the same calls, sent over the pool of raw connections that deliveries use. A client
belongs to the event loop of its first call, and so to one process: after a fork it refuses to go on.
"""

from __future__ import annotations

import asyncio
from os import getpid
from types import TracebackType
from typing import Self, TypeVar

from everbell.client.all_calls import AllCalls
from everbell.client.call import ANSWER_BYTES_MAX, Call, Lost, Reply, conclude, in_doubt
from everbell.client.operation import Awaiting
from everbell.errors import EverbellError
from everbell.http.client import HttpFailure, HttpPool, OutgoingRequest

T = TypeVar("T")


class AsyncClient(AllCalls, Awaiting):
    """A client of one tenant. Close it when done, or use it as an async context manager."""

    def _prepare(self) -> None:
        self._pool: HttpPool | None = None
        self._process = 0

    async def run(self, call: Call[T]) -> T:
        """Make a call, retry it where that is safe, and return its result or raise its error."""
        attempt = 1
        while True:
            outcome = await self._exchange(call)
            pause_s = self._persistence.pause_s(call, attempt, outcome)
            if pause_s is None:
                doubt = in_doubt(call, attempt, outcome)
                return conclude(call, outcome, self._address.url) if doubt is None else await self.run(doubt)
            await self._wait(pause_s)
            attempt += 1

    async def close(self) -> None:
        """Close the connections. Calls in flight raise `Unreachable`."""
        # In a child process the pool is the parent's. Closing it would remove its sockets from the parent's loop.
        if self._pool is not None and self._process == getpid():
            pool, self._pool = self._pool, None
            await pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _exchange(self, call: Call[T]) -> Reply | Lost:
        pool = self._opened()
        address = self._address
        headers = "".join(f"{name}: {value}\r\n" for name, value in address.headers(call).items()).encode()
        request = OutgoingRequest(
            address.scheme, address.host, address.port, call.method, address.target(call), headers, call.body
        )
        try:
            reply = await pool.fetch(request, self._timeout_s + call.wait_s)
        except HttpFailure as failure:
            return Lost(failure.reason.partition("; whether")[0], failure.sent, final=failure.kind == "timeout")
        if reply.truncated:
            return Lost(f"its answer is larger than {ANSWER_BYTES_MAX >> 20} MiB", sent=True, final=True)
        return Reply(reply.status, reply.headers, reply.body)

    async def _wait(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    def _opened(self) -> HttpPool:
        if self._pool is None:
            self._pool = HttpPool(guard=None, response_bytes_max=ANSWER_BYTES_MAX, ssl_context=self._tls)
            self._process = getpid()
        elif self._process != getpid():
            # The parent's event loop would read the answers to requests of this process.
            raise EverbellError("this client was used before the process forked; make one of its own in each process")
        return self._pool
