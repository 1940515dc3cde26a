"""A state of the model: the processes, the part of the log that some have not played, and the leases."""

from __future__ import annotations

from typing import NamedTuple

from everbell.core.cluster import AbortJoin, AcceptJoin, Leave, NotifyWatchers, PeerGc, PrepareJoin, Remove
from tests.model.values import Freed, Order

Epochs = tuple[tuple[int, int], ...]
"""Partitions with their epochs."""


class Process(NamedTuple):
    """One process of a name: at most one incarnation at a time, as `cluster.node` has it."""

    name: str
    is_on: bool = False
    me: str = ""
    """Its incarnation; empty while it is out of the cluster."""
    at: int = 0
    """How many of the values it has played."""
    is_late: bool = False
    """Its lease may have ended, and it has not looked at its clock since. It delivers nothing and may still append."""
    is_leaving: bool = False
    has_stopped: bool = False
    """It is leaving, and its engine has stopped."""
    queue: tuple[Order, ...] = ()
    watching: tuple[str, ...] = ()
    running: Epochs = ()
    stopping: Epochs = ()
    pauses: int = 0
    """The back-offs that it waits for."""
    inspections: tuple[tuple[str, ...], ...] = ()
    namesakes: tuple[str, ...] = ()
    """The incarnations with its name that it waits for."""


class Budget(NamedTuple):
    """How often each fault may still happen."""

    starts: int = 0
    kills: int = 0
    pauses: int = 0
    """A process stops for longer than its lease, and goes on."""
    losses: int = 0
    """A process loses its lease and notices at once; or it gives way because it lost the store."""
    leaves: int = 0
    repeats: int = 0
    """An entry gets into the log twice, because the answer to the first append was lost."""
    strays: int = 0
    """The command that a process was appending when it ended gets into the log later."""
    jumps: int = 0
    """A process reads a snapshot instead of the entries that it has not played."""
    withdrawals: int = 0
    """A join takes too long."""
    forgets: int = 0
    """An operator says that a dead node will not come back."""


class State(NamedTuple):
    """The whole cluster."""

    values: tuple[int, ...]
    """The values after each entry, from the last one that every process has played to the end of the log."""
    processes: tuple[Process, ...]
    budget: Budget
    leases: tuple[str, ...] = ()
    """Incarnations that have ended, with leases that have not."""
    ended: tuple[str, ...] = ()
    strays: tuple[Order, ...] = ()


def subject(order: Order) -> str:
    """The incarnation that an order is about."""
    match order:
        case Freed(owner):
            return owner
        case PrepareJoin(member):
            return member.incarnation
        case NotifyWatchers(joiner) | AcceptJoin(joiner) | AbortJoin(joiner):
            return joiner
        case Leave(member) | Remove(member):
            return member
        case PeerGc(by):
            return by
    return ""
