"""Retry policies and outcomes of attempts. The jitter is an argument."""

from __future__ import annotations

from typing import Literal

import msgspec

from everbell.core.time import MINUTE_MS, SECOND_MS

Result = Literal["delivered", "failed", "refused", "timeout", "lost"]


UNLIMITED = 2**31 - 1


class RetryPolicy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A retry policy. The n-th pause is `backoff_ms` doubled n-1 times, at most `max_backoff_ms`, minus up to half of
    it.
    """

    max_attempts: int = 10
    """`UNLIMITED` is a number, too, because nodes of the previous version read only numbers here."""
    backoff_ms: int = 2 * SECOND_MS
    max_backoff_ms: int = 10 * MINUTE_MS

    @property
    def limit(self) -> int | None:
        """The number of attempts; None without a limit."""
        return None if self.max_attempts >= UNLIMITED else self.max_attempts


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one attempt, as its channel saw it.

    `delivered` is success. `refused` is permanent. `failed`, `timeout` and `lost` (no answer can come any more)
    allow a retry.
    """

    result: Result
    reason: str | None = None
    code: int | None = None
    retry_after_ms: int | None = None
    """The pause that the receiver asked for; it applies if it is longer than the policy's pause."""


DELIVERED = Outcome("delivered")


def pause_ms(policy: RetryPolicy, attempt: int, jitter: float, retry_after_ms: int | None = None) -> int:
    """The pause after failed attempt number `attempt`; `jitter` in [0, 1) spreads retries over half of it."""
    doublings = min(attempt - 1, 62)
    full = min(policy.backoff_ms << doublings, policy.max_backoff_ms)
    pause = full - int(full * jitter / 2)
    return max(pause, retry_after_ms or 0)


def may_retry(policy: RetryPolicy, attempt: int, outcome: Outcome) -> bool:
    """Whether another attempt may follow attempt number `attempt`."""
    return outcome.result != "refused" and attempt < policy.max_attempts
