"""Values that many copies have in common, kept once: a copy from another node brings its own of each."""

from __future__ import annotations

from sys import intern

from everbell.core.event import Event
from everbell.core.replicas.copies import Copy, Stamp
from everbell.core.replication import Replication

_KNOWN_MAX = 1_000


class SharedValues:
    """Makes copies that share their settings, the names of nodes, and equal stamps."""

    def __init__(self) -> None:
        self._replications: dict[Replication, Replication] = {}

    def copy_with(self, copy: Copy, event: Event | None) -> Copy:
        """The copy with this event in it."""
        if len(self._replications) > _KNOWN_MAX:
            self._replications.clear()
        replication = self._replications.setdefault(copy.replication, copy.replication)
        stamp = Stamp(copy.stamp.at, intern(copy.stamp.node))
        touched = stamp if copy.touched == stamp else Stamp(copy.touched.at, intern(copy.touched.node))
        return Copy(event, copy.record, replication, copy.version, stamp, touched, intern(copy.ended_by))
