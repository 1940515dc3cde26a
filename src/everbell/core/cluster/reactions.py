"""Reactions: the commands that a node appends because of an entry that it played.

The value does not contain which leases have ended. The caller performs the effects of the entry first, learns of ended
leases when it begins to watch them, and passes them in.
"""

from __future__ import annotations

from collections.abc import Set

from everbell.core.cluster.commands import AcceptJoin, Command, NotifyWatchers
from everbell.core.cluster.value import Join, Value
from everbell.core.cluster.watching import report, watched, watcher_of


def reactions(before: Value, after: Value, me: str, dead: Set[str] = frozenset()) -> tuple[Command, ...]:
    """The commands that `me` has to append after an entry, once the effects of that entry have been performed.

    `dead` are incarnations with leases that are known to have ended. `me` reports those that it watches from now on,
    and accepts no joiner among them. To react to a snapshot, pass NOTHING as `before`.
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
