"""Many seeds, one node: every promise holds through crashes, full disks and failing receivers."""

from __future__ import annotations

import hashlib

import pytest

from everbell.engine import lanes
from everbell.testing import VirtualClock, run_virtual
from tests.simulation.world import Options, World


def simulate(seed: int, options: Options) -> tuple[list[str], str, World]:
    """The violations of a seed, and a hash of everything that happened."""

    async def main(clock: VirtualClock) -> tuple[list[str], str, World]:
        world = World(seed, clock, options)
        violations = await world.run()
        return violations, hashlib.sha256("\n".join(world.trace).encode()).hexdigest(), world

    return run_virtual(main)


@pytest.fixture(autouse=True)
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that go to the store after three, so that a small world shows what a big one would."""
    monkeypatch.setattr(lanes, "LINE_IN_MEMORY", 3)


@pytest.mark.parametrize("seed", range(60))
def test_promises_hold(seed: int) -> None:
    violations, _, _ = simulate(seed, Options())
    assert violations == []
