"""The arithmetic of pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.retry import DELIVERED, Outcome, Result, RetryPolicy, may_retry, pause_ms

policies = st.builds(
    lambda attempts, backoff, more: RetryPolicy(attempts, backoff, backoff + more),
    st.integers(1, 1_000),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
jitters = st.floats(0, 1, exclude_max=True)


@given(policies, st.integers(1, 1_000), jitters)
def test_a_pause_lies_in_the_upper_half_of_its_step(policy: RetryPolicy, attempt: int, jitter: float) -> None:
    full = min(policy.backoff_ms * 2 ** (attempt - 1), policy.max_backoff_ms)

    assert full / 2 <= pause_ms(policy, attempt, jitter) <= full


@given(policies, st.integers(1, 999))
def test_without_jitter_pauses_never_shrink(policy: RetryPolicy, attempt: int) -> None:
    assert pause_ms(policy, attempt, 0.0) <= pause_ms(policy, attempt + 1, 0.0) <= policy.max_backoff_ms


@given(policies, st.integers(1, 100), jitters, st.integers(0, 10**9))
def test_a_receiver_may_ask_for_a_longer_pause_but_not_for_a_shorter(
    policy: RetryPolicy, attempt: int, jitter: float, retry_after_ms: int
) -> None:
    own = pause_ms(policy, attempt, jitter)

    assert pause_ms(policy, attempt, jitter, retry_after_ms) == max(own, retry_after_ms)


@pytest.mark.parametrize(
    ("attempt", "jitter", "pause"),
    [(1, 0.0, 2_000), (1, 0.5, 1_500), (2, 0.0, 4_000), (3, 0.25, 7_000), (9, 0.0, 512_000), (10, 0.0, 600_000)],
)
def test_pauses_of_the_default_policy(attempt: int, jitter: float, pause: int) -> None:
    assert pause_ms(RetryPolicy(), attempt, jitter) == pause


@pytest.mark.parametrize(
    ("result", "attempt", "again"),
    [("failed", 2, True), ("timeout", 2, True), ("lost", 2, True), ("refused", 1, False), ("failed", 3, False)],
)
def test_some_outcomes_allow_another_attempt(result: Result, attempt: int, again: bool) -> None:
    assert may_retry(RetryPolicy(max_attempts=3), attempt, Outcome(result)) is again


def test_success_is_success() -> None:
    assert DELIVERED.result == "delivered"
