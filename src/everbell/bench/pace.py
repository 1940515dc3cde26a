"""Single events at a steady pace, in a process of its own: `python -m everbell.bench.pace`.

The first line of standard input is its plan, each further line a number of events. A request is due at its own time
whether or not the earlier ones were answered, and the time until its answer counts from there. So a server that is
slow for a moment makes all requests late that were due in that moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from time import perf_counter

import uvloop

from everbell.bench.bodies import requests_of
from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.figures import lateness_of
from everbell.bench.plans import LoadPlan, Paced, PacePlan
from everbell.bench.wire import Caller

_PREPARED = 1_000
_AHEAD_S = 0.05


class Pace:
    """Connections that wait for the next request."""

    def __init__(self, plan: PacePlan) -> None:
        self._plan = plan
        load = LoadPlan("", 0, plan.path, plan.to, 1, 1, plan.due_from, plan.due_span_ms, prepared=_PREPARED)
        self._requests = requests_of(load)
        self._idle: deque[int] = deque()
        self._callers: list[Caller] = []
        self._due_s: dict[int, float] = {}
        self._waiting: deque[float] = deque()
        self._took_ms: list[float] = []
        self._failures: list[str] = []
        self._sent = self._wanted = 0
        self._answered_all = asyncio.Event()

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for number in range(self._plan.connections):
            port = self._plan.ports[number % len(self._plan.ports)]
            # The first request of a connection is sent by `_begin`, like all others.
            _, caller = await loop.create_connection(partial(self._caller, number), "127.0.0.1", port)
            self._callers.append(caller)
            self._idle.append(number)

    def _caller(self, number: int) -> Caller:
        def answered(status: int, body: bytes) -> bytes | None:
            self._took_ms.append((perf_counter() - self._due_s[number]) * 1_000)
            if status != 201:
                self._failures.append(f"{status} {body[:300].decode('utf-8', 'replace')}")
            if len(self._took_ms) == self._wanted:
                self._answered_all.set()
            if self._waiting:
                self._due_s[number] = self._waiting.popleft()
                return self._next()
            self._idle.append(number)
            return b""

        return Caller(b"", answered)

    async def send(self, count: int) -> Paced:
        """Send this many events at the pace, and wait for all answers."""
        self._took_ms, self._failures, self._sent = [], [], 0
        self._wanted = count
        self._answered_all.clear()
        start_s = perf_counter() + _AHEAD_S
        done = 0
        while done < count:
            await asyncio.sleep(max(start_s + done / self._plan.per_s - perf_counter(), 0))
            while done < count and (due_s := start_s + done / self._plan.per_s) <= perf_counter():
                self._begin(due_s)
                done += 1
        await self._answered_all.wait()
        first = self._failures[0] if self._failures else ""
        return Paced(lateness_of(self._took_ms), len(self._failures), first)

    def _begin(self, due_s: float) -> None:
        if not self._idle:
            self._waiting.append(due_s)
            return
        number = self._idle.popleft()
        self._due_s[number] = due_s
        self._callers[number].send(self._next())

    def _next(self) -> bytes:
        self._sent += 1
        return self._requests[self._sent % len(self._requests)]


async def run(plan: PacePlan) -> None:
    """Run until standard input ends."""
    pace = Pace(plan)
    await pace.connect()
    say({"ready": True})
    async for line in lines_told():
        say(await pace.send(int(line)))


if __name__ == "__main__":
    uvloop.run(run(plan_told(PacePlan)))
