"""Channels of simulated nodes and the receivers behind them: slow, failing, and sometimes their answer is lost.

A receiver works on true time, even if the node that called it has died.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from everbell.channels.port import Delivery
from everbell.clock import Clock
from everbell.core.retry import DELIVERED, Outcome
from tests.simulation.processes import Process, ProcessLoop

DEADLINE_MS = 1_500
"""The timeout of one attempt. Receivers need less, even if the sender's clock runs fast."""


@dataclass
class Attempt:
    """One attempt, as the receiver saw it, and the sender's knowledge of it."""

    name: str
    key: str | None
    occurrence: int
    number: int
    partition: int
    epoch: int
    sender: str
    began_ms: int
    """True time, like `ended_ms`."""
    clock_at: int
    """The latest time that the sender's clock has shown."""
    ended_ms: int | None = None
    accepted: bool = False
    heard: bool = False
    """The sender knows that the attempt was accepted."""
    settled: bool = False
    refused: bool = False
    pulled: bool = False
    """The event was pulled by a worker."""


class Receivers:
    """All receivers."""

    def __init__(self, loop: ProcessLoop, dice: random.Random, failing: float) -> None:
        self.attempts: list[Attempt] = []
        self.under_way: dict[int, list[Attempt]] = {}
        """By partition."""
        self.healed = False
        self.cut_until_s: dict[str, float] = {}
        """The nodes that cannot reach any receiver, until when."""
        self.trace: list[str] = []
        self._loop = loop
        self._dice = dice
        self._failing = failing

    @property
    def now_ms(self) -> int:
        return int((self._loop.true_s + 1e-6) * 1_000)

    def take(self, attempt: Attempt, target: str) -> tuple[Outcome, float, bool]:
        """Begin to work on an attempt; returns the answer, how long it takes, and whether the answer is lost."""
        self.begin(attempt)
        dice = self._dice
        longest_s = DEADLINE_MS / 1_000 * 0.8
        pause_s = min(dice.expovariate(2 if target.endswith("slow") else 50), longest_s)
        outcome, lost = self._decide(target)
        attempt.accepted = outcome is DELIVERED
        attempt.refused = outcome.result == "refused"
        return outcome, pause_s, lost

    def begin(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self.under_way.setdefault(attempt.partition, []).append(attempt)

    def end(self, attempt: Attempt) -> None:
        attempt.ended_ms = self.now_ms
        self.under_way[attempt.partition].remove(attempt)
        self.trace.append(
            f"{attempt.began_ms} {attempt.ended_ms} {attempt.name}:{attempt.occurrence} #{attempt.number} "
            f"e{attempt.epoch} {attempt.sender} {attempt.accepted}"
        )

    def _decide(self, target: str) -> tuple[Outcome, bool]:
        if self.healed:
            return DELIVERED, False
        roll = self._dice.random()
        failing = 0.8 if target.endswith("bad") else self._failing
        if roll >= failing:
            return DELIVERED, False
        if roll < failing * 0.1:
            return Outcome("refused", "no"), False
        if roll < failing * 0.4:
            return DELIVERED, True
        return Outcome("failed", "not now", 503), False


class RoughChannel:
    """The channel of one node."""

    holds = False
    together = 1

    def __init__(self, loop: ProcessLoop, receivers: Receivers, process: Process, clock: Clock, sender: str) -> None:
        self._loop = loop
        self._receivers = receivers
        self._process = process
        self._clock = clock
        self._sender = sender
        self._closed = False

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.begin():
                self._send(delivery)

    async def close(self) -> None:
        self._closed = True

    def _send(self, delivery: Delivery) -> None:
        event = delivery.event
        if self._receivers.cut_until_s.get(self._process.name, 0.0) > self._loop.true_s:
            self._loop.call_later(0.01, delivery.settle, Outcome("lost", "no connection"))
            return
        attempt = Attempt(
            event.payload.decode(),
            event.key,
            event.occurrence,
            delivery.attempt,
            event.partition,
            delivery.epoch,
            self._sender,
            self._receivers.now_ms,
            self._clock.now() + self._process.set_back_ms,
        )
        outcome, pause_s, is_lost = self._receivers.take(attempt, event.to)
        deadline = self._loop.call_later(
            DEADLINE_MS / 1_000, self._settle, delivery, attempt, Outcome("timeout", "no answer"), None
        )
        self._loop.after(pause_s, self._answered, delivery, attempt, outcome, is_lost, deadline)

    def _answered(
        self, delivery: Delivery, attempt: Attempt, outcome: Outcome, is_lost: bool, deadline: asyncio.TimerHandle
    ) -> None:
        self._receivers.end(attempt)
        if not is_lost:
            self._process.call(self._settle, delivery, attempt, outcome, deadline)

    def _settle(
        self, delivery: Delivery, attempt: Attempt, outcome: Outcome, deadline: asyncio.TimerHandle | None
    ) -> None:
        if attempt.settled or self._closed:
            return
        attempt.settled = True
        attempt.heard = outcome is DELIVERED
        if deadline is not None:
            deadline.cancel()
        delivery.settle(outcome)
