"""Many seeds of clusters that hold replicas: `python -m tests.simulation.replica_campaign`."""

from __future__ import annotations

import sys

from tests.simulation.campaigning import Plan, StoryRun, main, tell
from tests.simulation.replica_options import ReplicaOptions, replicas_of_seed
from tests.simulation.replica_safeguards import REPLICA_SAFEGUARDS
from tests.simulation.replica_world import ReplicaWorld


def simulate_replicas(seed: int, options: ReplicaOptions) -> StoryRun:
    """Run one seed in its world."""
    return tell(lambda loop: ReplicaWorld(seed, loop, options))


def simulate_replicas_seed(seed: int) -> StoryRun:
    """Run a seed in the world that it makes."""
    return simulate_replicas(seed, replicas_of_seed(seed))


REPLICAS = Plan(
    "clusters of replicas",
    simulate_replicas_seed,
    replicas_of_seed,
    "deaths",
    [safeguard for safeguard, _, _ in REPLICA_SAFEGUARDS],
)

if __name__ == "__main__":
    sys.exit(main(REPLICAS))
