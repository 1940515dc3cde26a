"""When a replica may start an attempt: the first at the due time, each other one skew later than the one before.

A retry begins with the next replica in line: if the first one cannot reach the receiver, the next one may. A replica
that was told about an attempt of another node waits for that attempt's deadline, and then for its own turn. So a
request that takes longer than the skew is not repeated by the others while it is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everbell.core.event import Event
from everbell.core.replication import Replication


class Busy(Struct, frozen=True, array_like=True, gc=False):
    """An attempt that another node has started."""

    tenant: str
    id: str
    occurrence: int
    attempt: int
    until_at: int
    """The attempt has ended by then."""


def line_up(replicas: Sequence[str], attempt_count: int) -> list[str]:
    """The replicas in the order of their turns at the next attempt."""
    first = attempt_count % len(replicas) if replicas else 0
    return [*replicas[first:], *replicas[:first]]


def rank(me: str, replicas: Sequence[str], attempt_count: int) -> int:
    """How many replicas come before this node for the next attempt. A node that is no replica comes last."""
    if me not in replicas:
        return len(replicas)
    return (replicas.index(me) - attempt_count) % len(replicas)


def turn_at(event: Event, replication: Replication, replicas: Sequence[str], me: str, busy: Busy | None = None) -> int:
    """The time from which this node may start the event's next attempt."""
    wait_ms = rank(me, replicas, event.attempt_count) * replication.skew_ms
    if busy is None or (busy.occurrence, busy.attempt) != (event.occurrence, event.attempt_count + 1):
        return event.run_at + wait_ms
    return max(event.run_at, busy.until_at) + wait_ms
