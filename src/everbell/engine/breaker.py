"""The circuit breaker of a flow: after several failures in a row, a target gets no attempts for a while, then a probe.

    closed ── `failures` in a row ──► open ── the pause is over ──► probing ── a success ──► closed
                                        ▲                              │
                                        └────────── a failure ─────────┘

While the breaker is open no attempt starts, so events wait without using up their attempts. A probe is one attempt of
the first event in line. An answer that refuses an event permanently counts as a success, because the target is alive.
Attempts that were in flight when the breaker opened may still succeed. That closes the breaker, too.
"""

from __future__ import annotations

from typing import Literal

from everbell.core.retry import Outcome
from everbell.core.tenant import BreakerPolicy

BreakerState = Literal["closed", "open", "probing"]

_FAILURES = frozenset({"failed", "timeout", "lost"})


class Breaker:
    """Counts the outcomes of attempts. Its owner waits until the pause is over and calls `probe`."""

    __slots__ = ("failures", "policy", "probe_at", "state")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.failures = 0
        self.state: BreakerState = "closed"
        self.probe_at = 0
        """The time of the next probe, while the breaker is open."""

    def record(self, outcome: Outcome) -> bool:
        """Count the outcome of an attempt. Returns whether the state changed."""
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
        """Allow one attempt, because the pause is over."""
        self.state = "probing"
