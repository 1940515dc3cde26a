"""Lines without a head: the last owner of their partition died between two events of a key.

They start by themselves, but only after all events that were due at the takeover are in memory and have rung, because
one of those events may belong at the front of the line.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from everbell.clock import Clock
from everbell.engine.entry import Phase
from everbell.engine.flow import Flow
from everbell.engine.partition import Partition
from everbell.engine.working_set import WorkingSet


class OrphanedLines:
    """The lines that have not started yet, by partition."""

    def __init__(self, clock: Clock, memory: WorkingSet, partitions: Sequence[Partition]) -> None:
        self._clock = clock
        self._memory = memory
        self._partitions = partitions
        # By partition and (tenant, key): the time up to which the loader must have read the partition before the line
        # starts. None: the time at which this node took the partition.
        self._lines: dict[int, dict[tuple[str, str], int | None]] = {}
        self.is_soon = False
        """Whether some lines may start soon. False if all of them wait for the end of a pause."""

    def add(self, partition: int, tenant: str, key: str, read_until_at: int | None = None) -> None:
        """Start the line after the partition has been read up to this time; None: up to the time it was taken."""
        self._lines.setdefault(partition, {})[tenant, key] = read_until_at

    def forget(self, partitions: Container[int]) -> None:
        for index in [index for index in self._lines if index in partitions]:
            del self._lines[index]

    def take_ready(self) -> list[tuple[int, str, str]]:
        """Remove and return the lines that may start now, each with its partition."""
        ready: list[tuple[int, str, str]] = []
        elapsed_ms = self._clock.elapsed_ms()
        read = {
            index: [name for name, until_at in lines.items() if self._may_start(index, name[0], until_at, elapsed_ms)]
            for index, lines in self._lines.items()
        }
        self.is_soon = any(len(names) < len(self._lines[index]) for index, names in read.items())
        blocked = {index: self._skipping_flows(self._partitions[index], names) for index, names in read.items()}
        ahead = self._keys_ahead(self._clock.now()) if any(None in found.values() for found in blocked.values()) else ()
        for index, found in blocked.items():
            held_up = {name for name, flow in found.items() if flow is not None or name in ahead}
            self.is_soon |= any(flow is None or not flow.paused for name, flow in found.items() if name in held_up)
            lines = self._lines[index]
            for name in found.keys() - held_up:
                del lines[name]
            ready.extend((index, *name) for name in found if name not in held_up)
            if not lines:
                del self._lines[index]
        return ready

    def _may_start(self, index: int, tenant: str, until_at: int | None, elapsed_ms: int) -> bool:
        """Whether the partition is read up to this time, and no attempt of the last owner can be in flight."""
        partition = self._partitions[index]
        until_at = partition.taken_at if until_at is None else until_at
        if partition.next_at <= until_at:
            return False
        return partition.quiet_ms(elapsed_ms, tenant) <= 0

    def _skipping_flows(self, partition: Partition, lines: list[tuple[str, str]]) -> dict[tuple[str, str], Flow | None]:
        """For each line, a flow that may have skipped events of the line's key, or None."""
        return {
            name: next((flow for flow, skip in partition.skips_of(name[0]).items() if skip.has_key(*name)), None)
            for name in lines
        }

    def _keys_ahead(self, now: int) -> set[tuple[str, str | None]]:
        """The keys of events in memory that are due and have not rung, or that a user is changing."""
        entries = self._memory.entries.values()
        due = (entry for entry in entries if entry.event.run_at <= now)
        return {(entry.event.tenant, entry.event.key) for entry in due if entry.phase in (Phase.AHEAD, Phase.SETTLING)}
