"""A copy as users see it."""

from __future__ import annotations

from everbell.core.event import status_of
from everbell.core.replicas.copies import Copy
from everbell.engine.seen import Seen


def seen_of(copy: Copy, holders: tuple[str, ...] = (), *, is_delivering: bool = False) -> Seen:
    """The event, with the nodes that hold it."""
    if copy.event is None:
        assert copy.record is not None, "a copy has an event, or the record of its end"
        return Seen(None, copy.record, copy.record.status, holders=holders, replicas=copy.replication.count)
    status = "delivering" if is_delivering else status_of(copy.event)
    return Seen(copy.event, None, status, holders=holders, replicas=copy.replication.count)
