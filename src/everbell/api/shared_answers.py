"""One answer for many viewers: views that cost more than their transport are not computed anew for each caller.

Ten operators who look at the same page ask for the same views every two seconds. A caller that accepts an older answer
says so in the standard way, with `Cache-Control: max-age=SECONDS`. Such callers share one answer, and also the
computation of an answer that is under way. All other callers get an answer of their own, made after they asked.

Rules. The authorizer has judged every request before it comes here, and the routes that are shared give the same
answer to all callers that they admit. An answer is shared for a second, or longer if it was expensive: then for
`AGE_PER_COST` times its own duration, so that all viewers together cost the server at most a small part of a core. It
is never older than its caller accepts, and failures are not kept. The kept answers are bounded in number and bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from everbell.api.route import Handle
from everbell.clock import Clock
from everbell.http.message import HttpRequest, HttpResponse

AGE_MS_MIN = 1_000
AGE_PER_COST = 400
"""An answer that took 10 ms is shared for 4 s."""

KEPT_MAX = 128
KEPT_BYTES_MAX = 4 * 2**20

_MAX_AGE = "max-age="
_Key = tuple[str, str]


class _Answer:
    """An answer, or the task that makes it."""

    def __init__(self, task: asyncio.Task[HttpResponse], asked_at: int) -> None:
        self.task = task
        self.asked_at = asked_at
        self.good_ms: int | None = None
        """For how long it is shared. None: it is not there yet."""
        self.size = 0

    def serves(self, now: int, max_age_ms: int) -> bool:
        age_ms = now - self.asked_at
        return age_ms <= max_age_ms and (self.good_ms is None or age_ms <= self.good_ms)


class SharedAnswers:
    """The answers of one process that its viewers share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[_Key, _Answer] = {}
        self._bytes = 0

    def sharing(self, handle: Callable[..., Awaitable[HttpResponse]]) -> Handle:
        """The handler of a shared route."""

        async def respond(request: HttpRequest, *parameters: str) -> HttpResponse:
            max_age_ms = _max_age_ms(request.headers.get("cache-control", ""))
            if not max_age_ms:
                return await handle(request, *parameters)
            key, now = (request.raw_path, request.query_text), self._clock.elapsed_ms()
            answer = self._kept.get(key)
            if answer is None or not answer.serves(now, max_age_ms):
                answer = self._begin(key, handle(request, *parameters), now)
            # A viewer that hangs up must not take the answer away from the others.
            response = await asyncio.shield(answer.task)
            age_s = (self._clock.elapsed_ms() - answer.asked_at) // 1_000
            return response if not age_s else replace(response, headers=(*response.headers, ("age", str(age_s))))

        return respond

    def _begin(self, key: _Key, making: Awaitable[HttpResponse], now: int) -> _Answer:
        self._drop(key)
        answer = _Answer(asyncio.ensure_future(making), now)
        self._kept[key] = answer
        while len(self._kept) > KEPT_MAX:
            self._drop(next(iter(self._kept)))
        answer.task.add_done_callback(lambda _: self._finish(key, answer))
        return answer

    def _finish(self, key: _Key, answer: _Answer) -> None:
        if self._kept.get(key) is not answer:
            return
        task = answer.task
        if task.cancelled() or task.exception() is not None or task.result().status != 200:
            self._drop(key)
            return
        cost_ms = self._clock.elapsed_ms() - answer.asked_at
        answer.good_ms = max(AGE_MS_MIN, cost_ms * AGE_PER_COST)
        answer.size = len(task.result().body)
        self._bytes += answer.size
        while self._bytes > KEPT_BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._bytes -= dropped.size


def _max_age_ms(directives: str) -> int:
    """How old an answer the caller accepts; 0 where it does not say so in the plain way."""
    value = directives.strip().lower()
    seconds = value[len(_MAX_AGE) :] if value.startswith(_MAX_AGE) else ""
    return int(seconds) * 1_000 if seconds.isdecimal() and len(seconds) < 10 else 0
