"""Joining and leaving: the ring, in phases.

    prepare-join ──► prepared ── notify-watchers ──► notified ── accept-join ──► member
         │               │                              │
         │ no place      └────────── abort-join ────────┘   also: the target or its watcher left
         ▼
      refused; it backs off for a random time, clears dead peers (peer-gc) and tries again

A process that joins an empty cluster is a member at once. Otherwise it gets a target in the ring that no other
joiner has, so that as many can join at a time as there are members and no two ever change the same link. Commands
that no longer fit the value are ignored.
"""

from __future__ import annotations

from msgspec.structs import replace

from everbell.core.cluster.commands import AbortJoin, AcceptJoin, Leave, NotifyWatchers, PrepareJoin, Remove
from everbell.core.cluster.history import noted
from everbell.core.cluster.value import DEPARTED_MAX, Join, Member, Value, member_named
from everbell.core.cluster.watching import watcher_of

REFUSED = "refuse-join"
DEPARTED = "this incarnation has left the cluster"
OLD_FORMAT = "it does not understand the format of the log"
NAME_TAKEN = "another incarnation has this name"
NO_PLACE = "all members are busy with other joins"


def prepare_join(value: Value, command: PrepareJoin) -> Value:
    """Give a newcomer its place in the ring, or refuse it with the reason."""
    member = command.member
    me = member.incarnation
    if me in value.members or me in value.joins:
        return value
    namesake = member_named(value, member.name)
    if me in value.departed:
        return noted(value, REFUSED, me, DEPARTED)
    if member.format < value.format:
        return noted(value, REFUSED, me, OLD_FORMAT)
    if namesake:
        return noted(value, REFUSED, me, NAME_TAKEN, namesake.incarnation)
    if not value.members:
        return noted(_entered(value, member, place=0), "join", me, "the first member")
    taken = {join.target for join in value.joins.values()}
    # Sorted by name: incarnations are random, and a trace of the log should read the same in every run.
    free = sorted((peer.name, peer.incarnation) for peer in value.members.values() if peer.incarnation not in taken)
    if not free:
        return noted(value, REFUSED, me, NO_PLACE)
    target = free[value.index % len(free)][1]
    after = replace(value, joins={**value.joins, me: Join(member, target)})
    return noted(after, "prepare-join", me, f"before {value.members[target].name}")


def notify_watchers(value: Value, command: NotifyWatchers) -> Value:
    """Ask the watcher of the joiner's target to watch the joiner."""
    join = value.joins.get(command.joiner)
    if join is None or join.phase != "prepared":
        return value
    after = replace(value, joins={**value.joins, command.joiner: replace(join, phase="notified")})
    return noted(after, "notify-watchers", command.joiner)


def accept_join(value: Value, command: AcceptJoin) -> Value:
    """Take the joiner into the ring, before its target."""
    join = value.joins.get(command.joiner)
    if join is None or join.phase != "notified":
        return value
    joins = {joiner: other for joiner, other in value.joins.items() if joiner != command.joiner}
    after = _entered(replace(value, joins=joins), join.member, value.ring.index(join.target))
    return noted(after, "join", command.joiner, f"before {value.members[join.target].name}")


def abort_join(value: Value, command: AbortJoin) -> Value:
    """Undo a join."""
    if command.joiner not in value.joins:
        return value
    return noted(_without_joins(value, {command.joiner}), "abort-join", command.joiner, command.reason)


def leave(value: Value, command: Leave) -> Value:
    """A member that has released everything leaves."""
    if command.member not in value.members:
        return abort_join(value, AbortJoin(command.member, "it left"))
    return noted(_left(value, command.member, clean=True), "leave", command.member)


def remove(value: Value, command: Remove) -> Value:
    """A member is taken out because its lease ended."""
    if command.member not in value.members:
        return abort_join(value, AbortJoin(command.member, command.reason))
    return noted(_left(value, command.member, clean=False), "remove", command.member, command.reason, command.by)


def _entered(value: Value, member: Member, place: int) -> Value:
    members = {**value.members, member.incarnation: member}
    return replace(value, members=members, ring=(*value.ring[:place], member.incarnation, *value.ring[place:]))


def _left(value: Value, gone: str, clean: bool) -> Value:
    """The value without a member. Its partitions still name it: placement gives them to others, its backup first."""
    broken = {j for j, join in value.joins.items() if gone in (join.target, watcher_of(value, join.target))}
    name = value.members[gone].name
    return replace(
        _without_joins(value, broken),
        members={incarnation: member for incarnation, member in value.members.items() if incarnation != gone},
        ring=tuple(incarnation for incarnation in value.ring if incarnation != gone),
        departed=(*value.departed, gone)[-DEPARTED_MAX:],
        partitions=tuple(
            replace(part, clean=clean, home="" if clean else part.home or name) if part.owner == gone else part
            for part in value.partitions
        ),
    )


def _without_joins(value: Value, joiners: set[str]) -> Value:
    return replace(value, joins={joiner: join for joiner, join in value.joins.items() if joiner not in joiners})
