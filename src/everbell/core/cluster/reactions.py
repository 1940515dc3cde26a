"""Reactions: the commands that a node appends because of an entry that it played.

They do not depend on leases: a node that begins to watch a lease that has ended learns of it from the watch, as it
would later, and reports it then.
"""

from __future__ import annotations

from everbell.core.cluster.commands import AcceptJoin, Command, NotifyWatchers
from everbell.core.cluster.value import Join, Value
from everbell.core.cluster.watching import watcher_of


def reactions(before: Value, after: Value, me: str) -> tuple[Command, ...]:
    """The commands that `me` has to append after an entry, once the effects of that entry have been performed.

    To react to a snapshot, pass NOTHING as `before`.
    """
    commands: list[Command] = []
    mine = after.joins.get(me)
    if mine and mine.phase == "prepared" and me not in before.joins:
        commands.append(NotifyWatchers(me))
    commands += (
        AcceptJoin(joiner)
        for joiner, join in sorted(after.joins.items())
        if _awaits(after, join, me) and not _awaits(before, before.joins.get(joiner), me)
    )
    return tuple(commands)


def _awaits(value: Value, join: Join | None, me: str) -> bool:
    """Whether a join waits to be accepted by `me`."""
    return join is not None and join.phase == "notified" and me == watcher_of(value, join.target)
