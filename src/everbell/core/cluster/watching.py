"""Who watches whom.

Members form a ring: each watches the lease of the one after it. When that one dies, its watcher says so, and from the
value that follows the watcher sees that it now watches the one after: the gap is closed, with no talk about who does
it.

While a process joins, its fate hangs on two members: its target, and the one that watches the target and has to accept
it. So the joiner watches both. And that one watches the joiner from the first phase on: a joiner that died would
otherwise keep its target taken for ever. Thus every phase ends even if all others in it die.
"""

from __future__ import annotations

from everbell.core.cluster.commands import Command, Remove
from everbell.core.cluster.value import Value


def watches(value: Value, member: str) -> str:
    """The member after this one in the ring, which it watches; itself when it is alone."""
    return value.ring[(value.ring.index(member) + 1) % len(value.ring)]


def watcher_of(value: Value, member: str) -> str:
    """The member before this one in the ring, which watches it; itself when it is alone."""
    return value.ring[value.ring.index(member) - 1]


def watched(value: Value, me: str) -> tuple[str, ...]:
    """The incarnations whose leases `me` has to watch, as a member or as a joiner."""
    if me in value.members:
        target = watches(value, me)
        joiners = [joiner for joiner, join in value.joins.items() if join.target == target]
        return tuple(sorted({target, *joiners} - {me}))
    if me in value.joins:
        target = value.joins[me].target
        return tuple(sorted({target, watcher_of(value, target)}))
    return ()


def report(me: str, incarnation: str) -> Command:
    """What is appended about an incarnation whose lease has ended, be it a member or a joiner."""
    return Remove(incarnation, by=me)
