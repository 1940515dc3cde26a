"""What an attempt's outcome means for its event: the arithmetic of retries, with the jitter passed in."""

from __future__ import annotations

from typing import Literal

import msgspec

from everbell.core.time import MINUTE_MS, SECOND_MS

Result = Literal["delivered", "failed", "refused", "timeout", "lost"]


class Retry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A retry policy. The n-th pause is `backoff_ms` doubled n-1 times, at most `max_backoff_ms`, less up to half of
    it."""

    max_attempts: int = 10
    backoff_ms: int = 2 * SECOND_MS
    max_backoff_ms: int = 10 * MINUTE_MS


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What came of one attempt, as its channel saw it.

    `delivered` is success; `refused` is a no that will stay a no; `failed`, `timeout` and `lost` (nobody answered for
    it any more) are worth another attempt.
    """

    result: Result
    reason: str | None = None
    code: int | None = None
    retry_after_ms: int | None = None
    """How long the receiver asked us to wait; honoured when longer than our own pause."""


DELIVERED = Outcome("delivered")


def pause_ms(policy: Retry, attempt: int, jitter: float, retry_after_ms: int | None = None) -> int:
    """The pause after the failed attempt number `attempt`; `jitter` in [0, 1) spreads a herd over half of the pause."""
    doublings = min(attempt - 1, 62)
    full = min(policy.backoff_ms << doublings, policy.max_backoff_ms)
    pause = full - int(full * jitter / 2)
    return max(pause, retry_after_ms or 0)


def may_retry(policy: Retry, attempt: int, outcome: Outcome) -> bool:
    """Whether the outcome of attempt number `attempt` leaves another one."""
    return outcome.result != "refused" and attempt < policy.max_attempts
