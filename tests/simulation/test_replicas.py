"""Seeds of clusters that hold replicas: crashes, pauses, splits, storms, clocks, outages of the log."""

from __future__ import annotations

import pytest

from tests.simulation.replica_campaign import simulate_replicas_seed

SEEDS = (1, 2, 3, 5, 7, *range(10, 18))
# Faults that the campaign finds and that are not fixed yet, by the rule of the checker that notices.
KNOWN_FAULTS = {0: "cancelled", 4: "duplicate", 6: "unknown", 8: "duplicate", 9: "unknown"}


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_in_many_kinds_of_clusters_of_replicas(seed: int) -> None:
    assert simulate_replicas_seed(seed).violations == []


@pytest.mark.parametrize(("seed", "rule"), KNOWN_FAULTS.items())
def test_the_checker_notices_the_known_faults(seed: int, rule: str) -> None:
    """A fault that is fixed makes this test fail: then its seed belongs to `SEEDS`."""
    assert {violation.partition(":")[0] for violation in simulate_replicas_seed(seed).violations} == {rule}
