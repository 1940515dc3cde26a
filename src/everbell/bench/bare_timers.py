"""How late a bare timer is on this machine, in a process of its own that does nothing else.

One timer at a time, for the next millisecond that has not come yet. What a machine that is shared with others adds to
every lateness shows here.
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
    """Wait for each of the next milliseconds."""
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


def main() -> None:
    """The process."""
    say(uvloop.run(run(plan_told(TimersPlan))))


if __name__ == "__main__":
    main()
