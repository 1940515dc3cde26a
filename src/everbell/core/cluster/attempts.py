"""The commands of a process that wants to join, in order. The shell adds only time: pauses, and asking for leases.

    first try:   prepare-join
    later tries: peer-gc ──► the leases of all members and joiners are inspected ──► reports, prepare-join

The first try skips the inspection, because nearly all joins meet a healthy cluster. If a member that the join needs is
dead, the joiner watches it, reports it, backs off and tries again.
"""

from __future__ import annotations

from collections.abc import Iterable

from everbell.core.cluster.commands import AbortJoin, Command, PeerGc, PrepareJoin
from everbell.core.cluster.value import Member, Value
from everbell.core.cluster.watching import report


def first_try(member: Member) -> tuple[Command, ...]:
    """The commands of a new incarnation, as soon as it has a lease."""
    return (PrepareJoin(member),)


def next_try(me: str) -> tuple[Command, ...]:
    """The commands after a pause. Their entry tells the joiner to inspect the leases."""
    return (PeerGc(me),)


def withdrawn(me: str) -> tuple[Command, ...]:
    """The commands of a join that takes too long. Their entry has the effect of a failed join: back off, try again.

    A join that was never prepared, because the entry that refused it was not seen, goes on with the inspection.
    """
    return (AbortJoin(me, "it took too long"), PeerGc(me))


def inspected(value: Value, member: Member, dead: Iterable[str]) -> tuple[Command, ...]:
    """The commands after an inspection that found these incarnations without a lease."""
    me = member.incarnation
    reports = [report(me, each) for each in dead if each in value.members or each in value.joins]
    return (*reports, *(() if me in value.members else (PrepareJoin(member),)))
