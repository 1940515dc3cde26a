"""A program with Everbell in it, in its own process: an engine with one async handler that does nothing.

Events come in as batches of NDJSON, from this process through the API, or over HTTP from another one. A round is
over when every event was handled and its end is stored.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time

import msgspec
import uvloop

from everbell.api.application import Api
from everbell.bench.bodies import lines_of
from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.figures import lateness_of
from everbell.bench.plans import Finished, ProgramOrder, ProgramPlan
from everbell.channels.handler import HandlerChannel
from everbell.clock import SystemClock, wall_ns
from everbell.core.health import Health
from everbell.core.occurrence import Occurrence
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.engine.requests import CountEvents
from everbell.entropy import SystemEntropy
from everbell.http.server import HttpRequest, HttpResponse, HttpServer, ServerLimits
from everbell.node.process import collect_rarely, switch_soon
from everbell.stores.url import open_store

_LOOK_S = 0.002
_TELL_S = 0.2
_INTAKES = 4
_NS_A_MS = 1_000_000
_PATH = "/v1/tenants/bench/events/batch"
_HEADERS = {"content-type": "application/x-ndjson"}


class Program:
    """The handler and its records."""

    def __init__(self) -> None:
        self.handled = 0
        self._times: list[tuple[int, int]] = []
        self._engine: Engine | None = None
        self._api: Api | None = None

    async def start(self, store_url: str) -> int:
        """Start the engine; returns the port of its API."""
        clock, tenants = SystemClock(), Tenants()
        channel = HandlerChannel()
        channel.register("bench", self.handle)
        store = open_store(store_url)
        self._engine = engine = await Engine.start(store, {"handler": channel}, tenants, clock, SystemEntropy())
        self._api = api = Api(
            engine.ask,
            tenants,
            clock,
            lambda: Health("ready"),
            lambda: "",
            allows_handlers=True,
        )
        server = HttpServer(api, limits=ServerLimits())
        await server.start(("127.0.0.1", 0))
        return server.port

    async def handle(self, event: Occurrence) -> None:
        self.handled += 1
        self._times.append((wall_ns(), event.due_at))

    async def carry_out(self, order: ProgramOrder) -> Finished:
        """Schedule the batches of the order, wait until all events are finished, and report."""
        start, cpu = perf_counter(), process_time()
        expected = order.expect
        if order.batches:
            expected = order.batches * order.size
            body = b"\n".join(lines_of(order.size, [SystemClock().now()] * order.size, "handler:bench"))
            start, cpu = perf_counter(), process_time()
            await self._take_in(body, order.batches)
        await self._wait(expected)
        seconds, cpu_s = perf_counter() - start, process_time() - cpu
        late_ms = [(at_ns - due * _NS_A_MS) / _NS_A_MS for at_ns, due in self._times]
        self.handled, self._times = 0, []
        return Finished(seconds, expected, cpu_s, lateness_of(late_ms) if late_ms else None)

    async def _take_in(self, body: bytes, count: int) -> None:
        left = count

        async def keep_busy() -> None:
            nonlocal left
            assert self._api is not None
            while left > 0:
                left -= 1
                answer = self._api(HttpRequest("POST", _PATH, _HEADERS, body))
                response = answer if isinstance(answer, HttpResponse) else await answer
                assert response.status == 201, response.body[:500]

        await asyncio.gather(*(keep_busy() for _ in range(_INTAKES)))

    async def _wait(self, expected: int) -> None:
        assert self._engine is not None
        told_s = perf_counter()
        while self.handled < expected or await self._pending():
            await asyncio.sleep(_LOOK_S)
            if perf_counter() - told_s > _TELL_S:
                told_s = perf_counter()
                say({"done": self.handled})

    async def _pending(self) -> int:
        assert self._engine is not None
        return sum(counts.pending for counts in (await self._engine.ask(CountEvents())).values())


async def run(plan: ProgramPlan) -> None:
    """Run until standard input ends."""
    program = Program()
    say({"port": await program.start(plan.store)})
    async for line in lines_told():
        say(await program.carry_out(msgspec.json.decode(line, type=ProgramOrder)))


if __name__ == "__main__":
    plan = plan_told(ProgramPlan)
    switch_soon()
    collect_rarely()
    uvloop.run(run(plan))
