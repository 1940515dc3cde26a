"""A copy as users see it."""

from __future__ import annotations

from everbell.core.event import status_of
from everbell.core.replicas.copies import Copy
from everbell.engine.seen import Seen


def seen_of(
    copy: Copy, holders: tuple[str, ...] = (), unreached: tuple[str, ...] = (), *, is_delivering: bool = False
) -> Seen:
    """The event, with the nodes that hold it, and those that may have it in an earlier form."""
    count = copy.replication.count
    if copy.event is None:
        assert copy.record is not None, "a copy has an event, or the record of its end"
        record = copy.record
        return Seen(None, record, record.status, holders=holders, replicas=count, unreached=unreached)
    status = "delivering" if is_delivering else status_of(copy.event)
    return Seen(copy.event, None, status, holders=holders, replicas=count, unreached=unreached)
