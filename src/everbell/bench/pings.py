"""Pings: the time that a server takes to answer the cheapest request, again and again, in a process of its own.

A server has one event loop, so an answer comes when the loop has done everything that came before. The longest wait is
therefore about the longest time that the loop was blocked, and the noise of the machine.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import uvloop

from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.figures import lateness_of
from everbell.bench.plans import PingPlan

_PING = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


async def _ping(port: int, pause_s: float, took_ms: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        started_s = perf_counter()
        writer.write(_PING)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        took_ms.append((perf_counter() - started_s) * 1_000)
        await asyncio.sleep(pause_s)


async def main() -> None:
    plan = plan_told(PingPlan)
    took_ms: list[float] = []
    pinging = asyncio.ensure_future(_ping(plan.port, plan.pause_s, took_ms))
    say({"ready": True})
    async for _ in lines_told():
        if pinging.done():
            pinging.result()
        say(lateness_of(took_ms))
        took_ms.clear()


if __name__ == "__main__":
    uvloop.run(main())
