"""The port of all logs: the totally ordered commands of a cluster, a snapshot of what they yield, and leases.

Rules that every log keeps, and that `tests/conformance/test_log.py` checks on each:

- Entries are numbered from 1 on, without gaps. Everybody sees the same entry at an index, and who sees an entry can
  read all before it that were not trimmed.
- `append` has stored its command durably when it returns. `LogUnavailable` means that the command is not in the log and
  never will be; `LogUncertain` that it may be there, or may yet appear. Cancelling leaves that unknown, too. Commands
  are made so that repeating them is safe.
- Everything else can simply be repeated. After `LogUnavailable` it was done or it was not.
- A snapshot is never replaced by an older one, and only what a snapshot covers is trimmed.
- A lease lasts for its time from the moment in which `renew` was called, or a little longer, never shorter. The wall
  clocks of nodes are not asked. A holder counts its own deadline from before the call, so it stops before the lease
  ends.
- A lease that ended begins again when it is renewed. An end is a reason to write a command and no decision: what counts
  is what the log says then, and the stores' fences, which nobody outlives.
- There may be many handles of one log, in one process and in many. A handle belongs to one event loop; its methods may
  be called at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from everbell.errors import TooLarge

ENTRY_BYTES_MAX = 512 << 10
"""What one command may take: half of what a node of ZooKeeper holds."""


class Entry(Struct, frozen=True):
    """A command, and its place in the log."""

    index: int
    data: bytes


class Snapshot(Struct, frozen=True):
    """What the entries up to `index`, with that one, yield."""

    index: int
    data: bytes


class Log(Protocol):
    """One handle of the log. See the rules above.

    A member is named `name/incarnation`, so that a process that was started again is another member.
    """

    async def append(self, data: bytes) -> int:
        """Put a command at the end; returns its index. Raises `LogUncertain`, `LogUnavailable` or `TooLarge`."""
        ...

    async def read(self, after: int, limit: int) -> Sequence[Entry]:
        """Up to `limit` entries from `after + 1` on. Raises `Trimmed` when that one was trimmed: begin with the
        snapshot.
        """
        ...

    async def wait(self, after: int, timeout_s: float) -> None:
        """Return when there may be entries after `after`, at the latest after `timeout_s`.

        Being told is not certain, so whoever follows a log reads again after the time-out: it is the poll behind the
        notification. Never raises because the log is away.
        """
        ...

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        """Keep the snapshot, and trim the entries up to `snapshot.index - keep`. Does nothing when there is one as
        new.
        """
        ...

    async def load(self) -> Snapshot | None:
        """The latest snapshot."""
        ...

    async def renew(self, member: str, ttl_ms: int) -> None:
        """Let the lease of the member live for `ttl_ms` from now on."""
        ...

    async def release(self, member: str) -> None:
        """End the lease of a member at once, whoever holds it. Does nothing when it has none."""
        ...

    async def lives(self, member: str) -> bool:
        """Whether the member has a lease that did not end yet."""
        ...

    async def ended(self, member: str) -> None:
        """Return when the member has no lease that lives, at once if it has none now.

        While the log is away nothing is known, so it goes on waiting.
        """
        ...

    async def now(self) -> int | None:
        """Wall time where the log is kept, in milliseconds since 1970; None where that is this machine."""
        ...

    async def close(self) -> None:
        """Let go of everything. Leases that were renewed by this handle may end at once, or live on for their time."""
        ...


def check_size(data: bytes) -> None:
    """Raises `TooLarge` for a command that not every log could take."""
    if len(data) > ENTRY_BYTES_MAX:
        raise TooLarge(f"a command of the cluster has {len(data)} bytes, more than the {ENTRY_BYTES_MAX} of an entry")
