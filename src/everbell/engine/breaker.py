"""The circuit breaker of a flow: a target that fails again and again is left alone for a while, then probed.

    closed ── `failures` in a row ──► open ── the pause is over ──► probing ── a success ──► closed
                                        ▲                              │
                                        └────────── a failure ─────────┘

While it is open nothing is attempted, so events wait without using up their attempts; a probe is one attempt, of
whichever event is first. An answer that refuses an event for good is a sign of life. What was under way when it opened
may still succeed, which closes it, too.
"""

from __future__ import annotations

from typing import Literal

from everbell.core.retry import Outcome
from everbell.core.tenant import BreakerPolicy

State = Literal["closed", "open", "probing"]

_FAILURES = frozenset({"failed", "timeout", "lost"})


class Breaker:
    """Counts what comes of attempts. Whoever owns it waits out the pause and says `probe`."""

    __slots__ = ("failures", "policy", "state")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.failures = 0
        self.state: State = "closed"

    def hear(self, outcome: Outcome) -> bool:
        """What came of an attempt; whether that changes the state."""
        before = self.state
        if outcome.result not in _FAILURES:
            self.failures = 0
            self.state = "closed"
        else:
            self.failures += 1
            if before == "probing" or self.failures >= self.policy.failures:
                self.state = "open"
        return self.state != before

    def probe(self) -> None:
        """The pause is over."""
        self.state = "probing"
