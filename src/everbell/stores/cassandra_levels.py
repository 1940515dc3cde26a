"""How many replicas have to have something before it is acknowledged: the levels that a tenant may choose.

What the engine itself relies on is written and read by a majority, of all replicas or of this datacentre's: the fence
needs one in any case, and whoever takes a partition over has to find what the owner before it wrote. That is the floor;
a tenant's level comes on top of it. An acknowledgement means both.
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
    """The driver's word for a level."""
    level: Consistency = Consistency[name]
    return level


def levels_for(wanted: str, floor: str, datacenters: int) -> tuple[str, ...]:
    """The levels at which to write what a tenant wants at a level. Where there is one datacentre, local is all."""
    if datacenters == 1:
        wanted, floor = wanted.replace("EACH_", "").replace("LOCAL_", ""), floor.replace("LOCAL_", "")
    if floor in _IMPLIED[wanted]:
        return (wanted,)
    return (floor,) if wanted in _IMPLIED[floor] else (wanted, floor)
