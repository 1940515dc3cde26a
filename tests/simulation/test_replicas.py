"""Seeds of clusters that hold replicas: crashes, pauses, splits, storms, clocks, outages of the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.campaigning import Safeguard, breaks
from tests.simulation.replica_campaign import simulate_replicas, simulate_replicas_seed
from tests.simulation.replica_options import ReplicaOptions
from tests.simulation.replica_safeguards import REPLICA_SAFEGUARDS

ROOT = Path(__file__).parents[2]

# Seeds in which a promise was once broken: a cancel that missed a node which the log had dropped (0, 20, 37, 102), late
# occurrences that all replicas delivered (4, 8, 35), "not found" while a node held the event (6, 9, 89, 94).
SEEDS = (*range(10), 20, 35, 37, 89, 94, 102)


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_in_many_kinds_of_clusters_of_replicas(seed: int) -> None:
    assert simulate_replicas_seed(seed).violations == []


@pytest.mark.parametrize(
    ("safeguard", "rules", "options"), REPLICA_SAFEGUARDS, ids=[row[0].__name__ for row in REPLICA_SAFEGUARDS]
)
def test_without_a_safeguard_of_replicas_the_checker_notices(
    safeguard: Safeguard, rules: tuple[str, ...], options: ReplicaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert simulate_replicas(1, options).violations == []
    safeguard(monkeypatch)
    assert any(breaks(simulate_replicas(seed, options), rules) for seed in range(1, 20))


def test_a_seed_determines_the_whole_run_of_a_cluster_of_replicas() -> None:
    script = (
        "from tests.simulation.replica_campaign import simulate_replicas_seed;"
        "print(simulate_replicas_seed(3).trace_hash)"
    )

    def trace_hash(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert trace_hash("0") == trace_hash("1") == simulate_replicas_seed(3).trace_hash
