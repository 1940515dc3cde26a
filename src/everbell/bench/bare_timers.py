"""The lateness of a bare timer on this machine, in its own process that does nothing else.

One timer at a time, for the next millisecond that has not come yet. It shows how much lateness a shared machine
adds.
"""

from __future__ import annotations

import asyncio

import uvloop

from everbell.bench.dialogue import plan_told, say
from everbell.bench.figures import Lateness, lateness_of
from everbell.bench.plans import TimersPlan
from everbell.clock import wall_ns

_NS_A_MS = 1_000_000
_NS_A_S = 1_000_000_000
_BEGIN_NS = 10 * _NS_A_MS


async def run(plan: TimersPlan) -> Lateness:
    loop = asyncio.get_running_loop()
    late_ms: list[float] = []
    rung = asyncio.Event()
    due_ns = wall_ns() + _BEGIN_NS
    while len(late_ms) < plan.milliseconds:
        rung.clear()
        loop.call_later(max((due_ns - wall_ns()) / _NS_A_S, 0.0), rung.set)
        await rung.wait()
        now_ns = wall_ns()
        while due_ns <= now_ns and len(late_ms) < plan.milliseconds:
            late_ms.append((now_ns - due_ns) / _NS_A_MS)
            due_ns += _NS_A_MS
    return lateness_of(late_ms)


if __name__ == "__main__":
    say(uvloop.run(run(plan_told(TimersPlan))))
