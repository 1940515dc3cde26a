"""Reactions: the commands that a node appends because of an entry that it played.

Pure, like everything here. What the value cannot know is which leases have ended; whoever performs the effects of the
entry first (and so tries to watch whom it has to watch) knows, and passes that in.
"""

from __future__ import annotations

from collections.abc import Set

from everbell.core.cluster.commands import AcceptJoin, Command, NotifyWatchers
from everbell.core.cluster.value import Join, Value
from everbell.core.cluster.watching import report, watched, watcher_of


def reactions(before: Value, after: Value, me: str, dead: Set[str] = frozenset()) -> tuple[Command, ...]:
    """What `me` has to append after an entry, once the effects of that entry have been performed.

    `dead` are the incarnations whose leases are known to have ended: of those that `me` watches from now on, they are
    reported, and no joiner among them is accepted. To react to a snapshot, pass NOTHING as `before`.
    """
    already = watched(before, me)
    newly = [incarnation for incarnation in watched(after, me) if incarnation not in already]
    reported = [incarnation for incarnation in newly if incarnation in dead]
    commands: list[Command] = [report(me, incarnation) for incarnation in reported]
    mine = after.joins.get(me)
    if mine and mine.phase == "prepared" and me not in before.joins and not reported:
        commands.append(NotifyWatchers(me))
    commands += (
        AcceptJoin(joiner)
        for joiner, join in sorted(after.joins.items())
        if _awaits(after, join, me) and not _awaits(before, before.joins.get(joiner), me) and joiner not in dead
    )
    return tuple(commands)


def _awaits(value: Value, join: Join | None, me: str) -> bool:
    """Whether a join waits to be accepted by `me`."""
    return join is not None and join.phase == "notified" and me == watcher_of(value, join.target)
