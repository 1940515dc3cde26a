"""The levels of a write that has to meet the level of a tenant and the floor of the engine."""

from __future__ import annotations

import pytest

from everbell.core.tenant import CONSISTENCIES
from everbell.stores.cassandra.levels import LEVELS, level_of, levels_for


@pytest.mark.parametrize(
    ("wanted", "floor", "datacenters", "levels"),
    [
        ("ONE", "QUORUM", 2, ("QUORUM",)),
        ("QUORUM", "QUORUM", 2, ("QUORUM",)),
        ("LOCAL_QUORUM", "QUORUM", 2, ("LOCAL_QUORUM", "QUORUM")),
        ("LOCAL_QUORUM", "LOCAL_QUORUM", 2, ("LOCAL_QUORUM",)),
        ("EACH_QUORUM", "QUORUM", 2, ("EACH_QUORUM",)),
        ("ALL", "QUORUM", 2, ("ALL",)),
        ("QUORUM", "LOCAL_QUORUM", 2, ("QUORUM", "LOCAL_QUORUM")),
        ("LOCAL_QUORUM", "QUORUM", 1, ("QUORUM",)),
        ("EACH_QUORUM", "LOCAL_QUORUM", 1, ("QUORUM",)),
    ],
)
def test_a_write_meets_the_level_and_the_floor(
    wanted: str, floor: str, datacenters: int, levels: tuple[str, ...]
) -> None:
    assert levels_for(wanted, floor, datacenters) == levels


def test_the_levels_of_policies_are_those_of_cassandra() -> None:
    assert set(CONSISTENCIES) == {"strict", "relaxed", *LEVELS}
    assert len({level_of(name) for name in LEVELS}) == len(LEVELS)
