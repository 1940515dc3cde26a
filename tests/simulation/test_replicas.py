"""Seeds of clusters that hold replicas: crashes, pauses, splits, storms, clocks, outages of the log."""

from __future__ import annotations

import pytest

from tests.simulation.replica_campaign import simulate_replicas_seed

# Seeds in which a promise was once broken: a cancel that missed a node which the log had dropped (0, 20, 37, 102), late
# occurrences that all replicas delivered (4, 8, 35), "not found" while a node held the event (6, 9, 89, 94).
SEEDS = (*range(10), 20, 35, 37, 89, 94, 102)


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_in_many_kinds_of_clusters_of_replicas(seed: int) -> None:
    assert simulate_replicas_seed(seed).violations == []
