"""The clusters from which explorations begin: members at rest, processes that have not started, and possible faults."""

from __future__ import annotations

from typing import NamedTuple

from everbell.core.cluster import Value, watched
from tests.model.state import Budget, Process, State
from tests.model.values import Values
from tests.unit.core.cluster.towns import town


class Town(NamedTuple):
    """A cluster, and how often each fault may happen to it."""

    name: str
    members: str
    others: str
    partitions: int
    budget: Budget

    def at_rest(self, values: Values) -> State:
        """Its first state."""
        value = town(self.members, self.partitions)
        return State(
            (values.keep(value),),
            (*(_running(value, name) for name in self.members), *(Process(name, at=-1) for name in self.others)),
            self.budget,
        )


def _running(value: Value, name: str) -> Process:
    owned = tuple((number, part.epoch) for number, part in enumerate(value.partitions) if part.owner == name)
    return Process(name, True, name, watching=watched(value, name), running=owned)


SMALL = (
    Town("two join two", "ab", "cd", 3, Budget(starts=2)),
    Town("one joins three while one dies", "abc", "d", 4, Budget(starts=1, kills=1)),
    Town("two die and one comes back", "ab", "", 2, Budget(starts=1, kills=2)),
    Town("one of four is paused", "abcd", "", 4, Budget(pauses=1)),
    Town("one loses its lease", "abc", "", 3, Budget(losses=1)),
    Town("one leaves", "abc", "", 4, Budget(leaves=1)),
    Town("a join takes too long", "ab", "c", 3, Budget(starts=1, withdrawals=1)),
    Town("a joiner reads a snapshot", "ab", "c", 3, Budget(starts=1, kills=1, jumps=1)),
    Town("a dead node is forgotten", "abc", "", 3, Budget(starts=1, kills=1, forgets=1)),
)
"""Explored by `make test`."""

LARGE = (
    Town("one dies, one joins, entries are repeated", "ab", "c", 3, Budget(starts=1, kills=1, strays=1, repeats=1)),
    Town("one is paused, one dies", "abc", "", 3, Budget(kills=1, pauses=1)),
    Town("one joins while one loses its lease", "ab", "c", 3, Budget(starts=1, losses=1)),
    Town("one joins while one leaves", "abc", "d", 4, Budget(starts=1, leaves=1)),
    Town("one joins while one is paused", "ab", "c", 3, Budget(starts=1, pauses=1)),
    Town("one dies, one loses its lease", "abcd", "", 4, Budget(kills=1, losses=1)),
    Town("two join three", "abc", "de", 4, Budget(starts=2)),
    Town("two leave", "abc", "", 3, Budget(leaves=2)),
)
"""Explored by `make model`, after the small ones."""
