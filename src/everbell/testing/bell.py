"""Everbell on virtual time, for tests of programs that use it.

It is the real engine with a store in memory. No HTTP request is sent: attempts are recorded and answered as the test
says. Handlers are called for real.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from everbell.channels.port import Channel, Delivery
from everbell.core.occurrence import Occurrence, occurrence_of
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.tenant import Tenant
from everbell.core.time import parse_duration
from everbell.engine.settings import EngineSettings
from everbell.entropy import SeededEntropy
from everbell.errors import EverbellError
from everbell.library import Everbell
from everbell.stores.memory.store import MemoryStore
from everbell.testing.virtual import START_AT, VirtualClock, VirtualLoop, VirtualStart, start_at_of

# The engine rarely looks for clock steps: on virtual time each look costs a loop iteration and finds nothing.
_SETTINGS = EngineSettings(watch_clock_s=86_400.0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SETTLE_S = 0.00099
"""Slightly less than a millisecond, the resolution of events: timers are set in whole milliseconds, so a timer may fire
that much later.
"""


class Attempted(Struct, frozen=True):
    """An attempt to deliver over HTTP."""

    to: str
    occurrence: Occurrence
    at: datetime
    outcome: Outcome

    @property
    def payload(self) -> Any:
        return self.occurrence.payload

    @property
    def id(self) -> str:
        return self.occurrence.id


class _Recorder:
    """A channel that records attempts and sends nothing."""

    holds = False
    together = 1

    def __init__(self, bell: VirtualBell) -> None:
        self._bell = bell

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.begin():
                # Not at once, because no receiver answers at once.
                asyncio.get_running_loop().call_soon(self._attempt, delivery)

    def _attempt(self, delivery: Delivery) -> None:
        delivery.settle(self._bell._attempted(delivery))

    async def close(self) -> None:
        pass


class VirtualBell(Everbell):
    """An `Everbell` with a clock that advances only when the test says so.

        async def test_a_reminder(bell):
            await bell.schedule({"user": 7}, to="https://shop.example/remind", in_="3d")
            await bell.advance("3 days")
            assert [delivered.payload for delivered in bell.delivered] == [{"user": 7}]

    It needs a loop on virtual time: take the fixture `bell`, or run the test with `run_virtual`. `start` is when its
    time begins: an aware datetime, RFC 3339 text, or `"now"`; without it, on 1 January 2026.
    """

    def __init__(
        self, tenant: str = "default", *, policies: tuple[Tenant, ...] = (), start: VirtualStart | None = None
    ) -> None:
        super().__init__(MemoryStore(), tenant, policies=policies, settings=_SETTINGS, entropy=SeededEntropy(0))
        self.attempts: list[Attempted] = []
        """Every attempt over HTTP, in order."""
        self._start_at = START_AT if start is None else start_at_of(start)
        self._answers: dict[str, deque[Outcome]] = {}

    async def start(self) -> None:
        """Start. Raises `EverbellError` on a loop with real time."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise EverbellError("this needs virtual time: take the fixture `bell`, or run the test with run_virtual")
        self._clock = VirtualClock(loop, self._start_at)
        await super().start()

    @property
    def now(self) -> datetime:
        """The present virtual time."""
        return _instant(self._clock.now())

    @property
    def delivered(self) -> list[Attempted]:
        """The successful attempts over HTTP, in order."""
        return [attempt for attempt in self.attempts if attempt.outcome is DELIVERED]

    def answer(self, to: str, *answers: int | str) -> None:
        """Set the next answers of the receiver at a URL, in order: a status, `timeout`, or `lost`. Then 200."""
        self._answers.setdefault(to, deque()).extend(map(_outcome, answers))

    async def advance(self, duration: str | float | timedelta) -> None:
        """Advance the clock with everything that happens then: `"3 days"`, `"90s"`, `1.5` (seconds), a timedelta."""
        await asyncio.sleep(_milliseconds(duration) / 1_000)
        await asyncio.sleep(_SETTLE_S)

    async def advance_to(self, instant: datetime) -> None:
        """Advance the clock to an instant."""
        left = instant - self.now
        if left < timedelta(0):
            raise EverbellError(f"it is {self.now} already: time does not go back")
        await self.advance(left)

    def _ways_out(self) -> dict[str, Channel]:
        recorder = _Recorder(self)
        return {"http": recorder, "https": recorder}

    def _attempted(self, delivery: Delivery) -> Outcome:
        event = delivery.event
        answers = self._answers.get(event.to)
        outcome = answers.popleft() if answers else DELIVERED
        attempts_max = (event.retry or delivery.tenant.retry).max_attempts
        occurrence = occurrence_of(event, delivery.attempt, delivery.epoch, attempts_max)
        self.attempts.append(Attempted(event.to, occurrence, _instant(self._clock.now()), outcome))
        return outcome


def _instant(at: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at)


def _milliseconds(duration: str | float | timedelta) -> int:
    if isinstance(duration, timedelta):
        return int(duration / timedelta(milliseconds=1))
    if isinstance(duration, str):
        return parse_duration(duration, "duration")
    return int(duration * 1_000)


def _outcome(answer: int | str) -> Outcome:
    """The outcome that the HTTP channel would report."""
    match answer:
        case "timeout":
            return Outcome("timeout", "no answer in time")
        case "lost":
            return Outcome("lost", "the connection broke")
        case int() if 200 <= answer < 300:
            return DELIVERED
        case int() if 400 <= answer < 500 and answer not in (408, 409, 425, 429):
            return Outcome("refused", f"status {answer}", answer)
        case int():
            return Outcome("failed", f"status {answer}", answer)
    raise EverbellError(f"{answer!r} is no answer: use a status, 'timeout' or 'lost'")
