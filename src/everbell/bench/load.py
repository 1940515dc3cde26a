"""The load generator, in its own process: `python -m everbell.bench.load`.

The first line of standard input is its plan. It prepares the requests and reports that it is ready. Each further
line is a number of requests to send; it reports progress and finally the result. Events have no ids of their own, so
the prepared requests can be repeated.
"""

from __future__ import annotations

import sys
from time import perf_counter, process_time

import uvloop

from everbell.bench.bodies import requests_of
from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import LoadPlan, Sent
from everbell.bench.wire import call_all

_TELL_S = 0.2


class Load:
    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._requests = requests_of(plan)
        self._place = -1

    async def send(self, count: int) -> Sent:
        plan, requests = self._plan, self._requests
        connections = min(plan.connections, count)
        left = count - connections
        answered = failed = 0
        first_failure = ""
        start = told = perf_counter()
        cpu = process_time()

        def following(status: int, body: bytes) -> bytes | None:
            nonlocal left, answered, failed, told, first_failure
            answered += 1
            if not 200 <= status < 300 or status == 207:
                failed += 1
                first_failure = first_failure or f"{status} {body[:300].decode('utf-8', 'replace')}"
            if (now := perf_counter()) - told > _TELL_S:
                told = now
                say({"done": answered * plan.batch})
            if left <= 0:
                return None
            left -= 1
            return self._turn(requests)

        ports = (plan.port, *plan.more_ports)
        await call_all(plan.host, ports, [self._turn(requests) for _ in range(connections)], following)
        seconds = perf_counter() - start
        failed += count - answered
        return Sent(seconds, count, count * plan.batch, failed, process_time() - cpu, first_failure)

    def _turn(self, requests: list[bytes]) -> bytes:
        self._place = place = (self._place + 1) % len(requests)
        return requests[place]


if __name__ == "__main__":
    load = Load(plan_told(LoadPlan))
    say({"ready": True})
    while line := sys.stdin.buffer.readline():
        say(uvloop.run(load.send(int(line))))
