"""The turns of this node at the events that it holds: what it knows about the other replicas' attempts.

Times of waiting are kept by the monotonic clock: a wall clock that is set, here or on another node, must not keep an
event waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.replicas.copies import Copy
from everbell.core.replicas.turns import Busy, line_up, turn_at
from everbell.engine.replica_requests import CopyName
from everbell.replicas.port import Members
from everbell.replicas.store import CopyStore

_BUSY_KEPT = 100_000
# How long a node with due events in line keeps the other replicas from delivering them.
_LINE_MS = 1_500
# The longer an event waits, the more rarely it is looked at: a line may be long, and last for hours.
_LINE_PART = 4
_LINE_MS_MAX = 15_000


class TurnTaking:
    """Decides when this node may attempt an event."""

    def __init__(self, store: CopyStore, members: Members, clock: Clock) -> None:
        self.busy: dict[CopyName, Busy] = {}
        """Attempts that other nodes have announced."""
        self._store = store
        self._members = members
        self._clock = clock
        # The node, tenant and target of due events that wait in line at another node, until when.
        self._lines: dict[tuple[str, str, str], int] = {}
        self._has_joined = False

    @property
    def has_joined(self) -> bool:
        """Whether this node has been a member since it started. Before that it does not know the other replicas."""
        self._has_joined = self._has_joined or self._members.is_inside
        return self._has_joined

    def turn_at(self, event: Event, copy: Copy, replicas: Sequence[str], group_of: Callable[[Event], str]) -> int:
        """The time from which this node may attempt the event. `group_of` names the target of an event."""
        me, skew_ms = self._members.me, copy.replication.skew_ms
        at = turn_at(event, copy.replication, replicas, me, self.busy.get(copy.name))
        before = line_up(replicas, event.attempt_count)
        if me in before:
            before = before[: before.index(me)]
        if not before:
            # A node that restarts while the log is away gets copies, and comes last.
            return at if self.has_joined else at + copy.replication.count * skew_ms
        wait_ms = 0
        elapsed_ms = self._clock.elapsed_ms()
        if (overdue_ms := self._store.overdue.get(copy.name)) is not None:
            # All replicas learned of it at about the same time, and its time was over for each of them.
            wait_ms = overdue_ms + len(before) * skew_ms - elapsed_ms
        if self._lines:
            group = group_of(event)
            patience_ms = min(max(self._clock.now() - event.run_at, 0) // _LINE_PART, _LINE_MS_MAX)
            for place, name in enumerate(before):
                until_ms = self._lines.get((name, event.tenant, group), 0)
                if until_ms > elapsed_ms:
                    behind_ms = (len(before) - place - 1) * skew_ms
                    wait_ms = max(wait_ms, until_ms + behind_ms + patience_ms - elapsed_ms)
        return max(at, self._clock.now() + wait_ms) if wait_ms > 0 else at

    def note_busy(self, busy: Iterable[Busy], timeout_ms: Callable[[str], int]) -> None:
        """Other nodes attempt these events. `timeout_ms` has the longest attempt of a tenant, without leases."""
        now = self._clock.now()
        for each in busy:
            name = each.tenant, each.id
            if len(self.busy) >= _BUSY_KEPT and name not in self.busy:
                continue
            copy = self._store.copies.get(name)
            is_lease = copy is not None and copy.event is not None and copy.event.to.startswith("queue:")
            # The clock of the other node may be far ahead.
            until_at = each.until_at if is_lease else min(each.until_at, now + timeout_ms(each.tenant))
            self.busy[name] = replace(each, until_at=until_at)

    def note_lines(self, sender: str, flows: Sequence[tuple[str, str]]) -> None:
        """Due events of these tenants and targets wait in line at another node."""
        until_ms = self._clock.elapsed_ms() + _LINE_MS
        for tenant, group in flows:
            self._lines[sender, tenant, group] = until_ms

    def forget_announcements(self) -> None:
        """Forget announcements of other nodes that no longer count. Called every moment."""
        # A node that loses its place later must know that it had one.
        self._has_joined = self.has_joined
        now, elapsed_ms = self._clock.now(), self._clock.elapsed_ms()
        self.busy = {name: busy for name, busy in self.busy.items() if busy.until_at > now}
        self._lines = {line: until_ms for line, until_ms in self._lines.items() if until_ms > elapsed_ms}

    def is_busy_elsewhere(self, copy: Copy) -> bool:
        """Whether another node has announced an attempt of the event that may still be in flight."""
        busy, event = self.busy.get(copy.name), copy.event
        return (
            busy is not None
            and event is not None
            and (busy.occurrence, busy.attempt) == (event.occurrence, event.attempt_count + 1)
            and busy.until_at > self._clock.now()
        )
