"""Pulling workers in their own process: lease a batch, acknowledge it, and repeat until enough events are done."""

from __future__ import annotations

import re
import sys
from time import perf_counter, process_time

import msgspec
import uvloop

from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import PullPlan, Sent
from everbell.bench.wire import call_all, request

_TELL_S = 0.2
_TOKENS = re.compile(rb'"lease":("[^"]+")')
_LEASED = b'{"events"'


async def pull(plan: PullPlan, wanted: int) -> Sent:
    lease = request(plan.path + "/lease", msgspec.json.encode({"limit": plan.batch, "wait": "1s"}))
    ack = plan.path + "/ack"
    done = failed = requests = 0
    first_failure = ""
    start = told = ended = perf_counter()
    cpu = process_time()

    def following(status: int, body: bytes) -> bytes | None:
        nonlocal done, failed, requests, told, ended, first_failure
        requests += 1
        if status != 200:
            failed += 1
            first_failure = first_failure or f"{status} {body[:300].decode('utf-8', 'replace')}"
            return None
        if body.startswith(_LEASED):
            tokens = _TOKENS.findall(body)
            if tokens:
                return request(ack, b'{"leases":[' + b",".join(tokens) + b"]}")
        else:
            done += int(msgspec.json.decode(body)["done"])
            ended = perf_counter()  # The time after the last event is spent waiting for more.
        if (now := perf_counter()) - told > _TELL_S:
            told = now
            say({"done": done})
        return lease if done < wanted else None

    await call_all(plan.host, [plan.port], [lease] * plan.workers, following)
    return Sent(ended - start, requests, done, failed, process_time() - cpu, first_failure)


if __name__ == "__main__":
    plan = plan_told(PullPlan)
    say({"ready": True})
    while line := sys.stdin.buffer.readline():
        say(uvloop.run(pull(plan, int(line))))
