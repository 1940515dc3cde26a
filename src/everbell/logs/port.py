"""The port of all logs: the totally ordered commands of a cluster, a snapshot of their result, and leases.

Rules that every log keeps, and that `tests/conformance/test_log.py` checks on each:

- Entries are numbered from 1 on, without gaps. All readers see the same entry at an index, and a reader that sees an
  entry can read all earlier entries that were not trimmed.
- `append` has stored its command durably when it returns. `LogUnavailable` means that the command is not in the log
  and never will be. `LogUncertain` means that it may be there, or may still appear; so does a cancelled call.
  Commands are made so that repeating them is safe.
- Every other call can be repeated. After `LogUnavailable` it may or may not have taken effect.
- A snapshot is never replaced by an older one, and only entries that a snapshot covers are trimmed.
- A lease lasts for its time from the moment of the call of `renew`, or a little longer, never shorter. The wall clocks
  of nodes do not matter. A holder counts its own deadline from before the call, so it stops before the lease ends.
- A lease that ended begins again when it is renewed. An end is a reason to append a command and decides nothing by
  itself: the log decides, and the stores' fences refuse writes of old owners.
- There may be many handles of one log, in one process and in many. A handle belongs to one event loop; its methods may
  be called concurrently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from everbell.errors import TooLarge

ENTRY_BYTES_MAX = 512 << 10
"""The limit of one command: half of the size of a ZooKeeper node."""


class LogEntry(Struct, frozen=True):
    """A command and its place in the log."""

    index: int
    data: bytes


class Snapshot(Struct, frozen=True):
    """The result of the entries up to and including `index`."""

    index: int
    data: bytes


class Log(Protocol):
    """One handle of the log. See the rules above.

    A member is named `name/incarnation`, so that a restarted process is another member.
    """

    async def append(self, data: bytes) -> int:
        """Append a command; returns its index. Raises `LogUncertain`, `LogUnavailable` or `TooLarge`."""
        ...

    async def read(self, after: int, limit: int) -> Sequence[LogEntry]:
        """Up to `limit` entries from `after + 1` on. Raises `Trimmed` if that entry was trimmed: begin with the
        snapshot.
        """
        ...

    async def wait(self, after: int, timeout_s: float) -> None:
        """Return when there may be entries after `after`, at the latest after `timeout_s`.

        Notifications may get lost, so a follower reads again after the time-out. Never raises because the log is
        away.
        """
        ...

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        """Store the snapshot and trim the entries up to `snapshot.index - keep`. Does nothing if the stored one is as
        new.
        """
        ...

    async def load(self) -> Snapshot | None:
        """The latest snapshot."""
        ...

    async def renew(self, member: str, ttl_ms: int) -> None:
        """Extend the lease of the member to `ttl_ms` from now."""
        ...

    async def release(self, member: str) -> None:
        """End the lease of a member at once, whichever handle holds it. Does nothing if there is none."""
        ...

    async def lives(self, member: str) -> bool:
        """Whether the member has a lease that has not ended."""
        ...

    async def ended(self, member: str) -> None:
        """Return when the member has no live lease, at once if it has none now. Keeps waiting while the log is away."""
        ...

    async def now(self) -> int | None:
        """Wall time at the log's server, in milliseconds since 1970; None if the log is on this machine."""
        ...

    async def close(self) -> None:
        """Free all resources. Leases renewed by this handle may end at once, or live on for their time."""
        ...


def check_size(data: bytes) -> None:
    """Raise `TooLarge` for a command that some log could not store."""
    if len(data) > ENTRY_BYTES_MAX:
        raise TooLarge(f"a command of the cluster has {len(data)} bytes, more than the {ENTRY_BYTES_MAX} of an entry")
