"""Pauses between tries to join: longer each time, up to a limit, and never the same for two."""

from __future__ import annotations

from everbell.cluster.backoff import Backoff
from everbell.entropy import SeededEntropy


def test_pauses_double_up_to_a_limit_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(SeededEntropy(1))
    pauses = [backoff.next_s() for _ in range(10)]
    for number, pause_s in enumerate(pauses):
        middle_s = min(0.2 * 2**number, 5.0)
        assert middle_s / 2 <= pause_s < middle_s * 3 / 2
    backoff.reset()
    assert backoff.next_s() < 0.3


def test_no_two_march_in_step() -> None:
    one, other = Backoff(SeededEntropy(1)), Backoff(SeededEntropy(2))
    assert [one.next_s() for _ in range(5)] != [other.next_s() for _ in range(5)]
