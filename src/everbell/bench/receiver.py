"""The receiver of deliveries, in its own process: counts events, and records their lateness by its own clock.

Each input line gives the number of events to wait for, by path; the answer comes when all have arrived. Arrival
times are compared with the due times only afterwards, so that receiving stays cheap.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import lru_cache
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.figures import Lateness, lateness_of
from everbell.bench.plans import Counted, ReceiverOrder, ReceiverPlan
from everbell.bench.wire import split_message
from everbell.clock import wall_ns
from everbell.core.time import parse_instant

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_DUE = b"everbell-due: "
_DUE_BYTES = len("2026-01-01T00:00:00.000Z")
_BATCH_MARK = b'"specversion"'
_LOOK_S = 0.002
_TELL_S = 0.2
_NS_A_MS = 1_000_000


class Arrivals(Struct):
    """The arrivals on one path."""

    count: int = 0
    first_ns: int = 0
    last_ns: int = 0
    times_ns: list[int] = []
    dues: list[bytes] = []

    def lateness(self, until_ns: int | None) -> Lateness | None:
        """The lateness of the events that arrived in time to count."""
        late_ms = [
            (arrived - _due_ns(due)) / _NS_A_MS
            for arrived, due in zip(self.times_ns, self.dues, strict=True)
            if until_ns is None or arrived <= until_ns
        ]
        return lateness_of(late_ms) if late_ms else None


@lru_cache(maxsize=100_000)
def _due_ns(due: bytes) -> int:
    return parse_instant(due.decode()) * _NS_A_MS


class BenchReceiver:
    """Counts by path."""

    def __init__(self, plan: ReceiverPlan) -> None:
        self._plan = plan
        self._paths: dict[bytes, Arrivals] = defaultdict(Arrivals)

    def take(self, data: bytes, start: int, end: int) -> None:
        now = wall_ns()
        path = data[5 : data.index(b" ", 5)]
        arrivals = self._paths[path]
        due = data.find(_DUE, 0, start)
        arrivals.count += 1 if due >= 0 else max(data.count(_BATCH_MARK, start, end), 1)
        arrivals.first_ns = arrivals.first_ns or now
        arrivals.last_ns = now
        if self._plan.lateness and due >= 0:
            due += len(_DUE)
            arrivals.times_ns.append(now)
            arrivals.dues.append(data[due : due + _DUE_BYTES])

    async def carry_out(self, order: ReceiverOrder) -> dict[str, Counted]:
        """Wait for the expected events, and report."""
        loop = asyncio.get_running_loop()
        told_s = loop.time()
        while any(self._paths[path.encode()].count < count for path, count in order.expect.items()):
            await asyncio.sleep(_LOOK_S)
            if loop.time() - told_s > _TELL_S:
                told_s = loop.time()
                say({"done": sum(arrivals.count for arrivals in self._paths.values())})
        paths, self._paths = self._paths, defaultdict(Arrivals)
        return {
            path.decode(): Counted(came.count, came.first_ns, came.last_ns, came.lateness(order.until_ns))
            for path, came in paths.items()
        }


class Reception(asyncio.Protocol):
    """One connection; every request is answered with 204."""

    def __init__(self, receiver: BenchReceiver) -> None:
        self._receiver = receiver
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not registered as such.

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        while data and (bounds := split_message(data)) is not None:
            self._receiver.take(data, *bounds)
            assert self._transport is not None
            self._transport.write(_ANSWER)
            data = data[bounds[1] :]
        self._rest = data


async def receive(plan: ReceiverPlan) -> None:
    """Receive until standard input ends."""
    loop = asyncio.get_running_loop()
    receiver = BenchReceiver(plan)
    server = await loop.create_server(lambda: Reception(receiver), "127.0.0.1", 0)
    say({"port": server.sockets[0].getsockname()[1]})
    async for line in lines_told():
        say(await receiver.carry_out(msgspec.json.decode(line, type=ReceiverOrder)))


if __name__ == "__main__":
    uvloop.run(receive(plan_told(ReceiverPlan)))
