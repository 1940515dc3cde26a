"""Levels of consistency: how many replicas must have a write before it is acknowledged.

The engine itself needs a majority, of all replicas or of those in this datacentre, because the next owner of a
partition must find the writes of the previous one. That level is the floor. An acknowledgement means both the floor and
the level that the tenant has chosen.
"""

from __future__ import annotations

from acsylla import Consistency

LEVELS = ("ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL")

_IMPLIED: dict[str, frozenset[str]] = {
    "ONE": frozenset({"ONE"}),
    "LOCAL_ONE": frozenset({"ONE", "LOCAL_ONE"}),
    "QUORUM": frozenset({"ONE", "QUORUM"}),
    "LOCAL_QUORUM": frozenset({"ONE", "LOCAL_ONE", "LOCAL_QUORUM"}),
    "EACH_QUORUM": frozenset({"ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM"}),
    "ALL": frozenset(LEVELS),
}


def level_of(name: str) -> Consistency:
    level: Consistency = Consistency[name]
    return level


def levels_for(wanted: str, floor: str, datacenters: int) -> tuple[str, ...]:
    """The levels that together mean `wanted` and `floor`. With one datacentre, local levels are the same as global."""
    if datacenters == 1:
        wanted, floor = wanted.replace("EACH_", "").replace("LOCAL_", ""), floor.replace("LOCAL_", "")
    if floor in _IMPLIED[wanted]:
        return (wanted,)
    return (floor,) if wanted in _IMPLIED[floor] else (wanted, floor)
