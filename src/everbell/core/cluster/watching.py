"""The watches between members.

Members form a ring: each watches the lease of the next one. When a lease ends, its watcher appends a removal. In the
value that follows, the watcher watches the member after the removed one: the gap is closed without any negotiation.

A join depends on two members: the joiner's target, and the target's watcher, which has to accept the join. So the
joiner watches both. That watcher watches the joiner from the first phase on, because a dead joiner would otherwise
keep its target reserved for ever. Thus every phase ends even if all others in it die.
"""

from __future__ import annotations

from everbell.core.cluster.commands import Command, Remove
from everbell.core.cluster.value import Value


def watches(value: Value, member: str) -> str:
    """The next member in the ring, which this one watches; itself if it is alone."""
    return value.ring[(value.ring.index(member) + 1) % len(value.ring)]


def watcher_of(value: Value, member: str) -> str:
    """The previous member in the ring, which watches this one; itself if it is alone."""
    return value.ring[value.ring.index(member) - 1]


def watched(value: Value, me: str) -> tuple[str, ...]:
    """The incarnations with leases that `me` has to watch, as a member or as a joiner."""
    if me in value.members:
        target = watches(value, me)
        joiners = [joiner for joiner, join in value.joins.items() if join.target == target]
        return tuple(sorted({target, *joiners} - {me}))
    if me in value.joins:
        target = value.joins[me].target
        return tuple(sorted({target, watcher_of(value, target)}))
    return ()


def report(me: str, incarnation: str) -> Command:
    """The command to append when the lease of a member or joiner has ended."""
    return Remove(incarnation, by=me)
