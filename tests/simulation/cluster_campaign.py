"""Many seeds of whole clusters for some minutes: `python -m tests.simulation.cluster_campaign`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from everbell.engine import ordering as lanes
from tests.simulation.campaigning import Plan, StoryRun, main, tell
from tests.simulation.cluster_memory import one_player
from tests.simulation.cluster_options import ClusterOptions, cluster_of
from tests.simulation.cluster_safeguards import SAFEGUARDS
from tests.simulation.cluster_world import ClusterWorld


def simulate_cluster(seed: int, options: ClusterOptions) -> StoryRun:
    """Run one seed in its world."""
    with _limits_of(options), one_player():
        return tell(lambda loop: ClusterWorld(seed, loop, options))


@contextmanager
def _limits_of(options: ClusterOptions) -> Iterator[None]:
    usual = lanes.LINE_IN_MEMORY
    lanes.LINE_IN_MEMORY = options.line
    try:
        yield
    finally:
        lanes.LINE_IN_MEMORY = usual


def simulate_cluster_seed(seed: int) -> StoryRun:
    """Run a seed in the world that it makes."""
    return simulate_cluster(seed, cluster_of(seed))


CLUSTERS = Plan(
    "clusters", simulate_cluster_seed, cluster_of, "takeovers", [safeguard for safeguard, _, _ in SAFEGUARDS]
)

if __name__ == "__main__":
    sys.exit(main(CLUSTERS))
