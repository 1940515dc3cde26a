"""Which levels are asked for when a tenant wants one and the engine needs another."""

from __future__ import annotations

import pytest

from everbell.core.tenant import CONSISTENCIES
from everbell.stores.cassandra_levels import LEVELS, level_of, levels_for


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
def test_what_is_written_is_both(wanted: str, floor: str, datacenters: int, levels: tuple[str, ...]) -> None:
    assert levels_for(wanted, floor, datacenters) == levels


def test_the_levels_of_policies_are_those_of_cassandra() -> None:
    assert set(CONSISTENCIES) == {"strict", "relaxed", *LEVELS}
    assert len({level_of(name) for name in LEVELS}) == len(LEVELS)
