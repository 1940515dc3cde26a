"""Lines without a head, found when a partition was taken: the owner before this one died between two events of a key.

They go on by themselves, but not before all that was due at the start is in memory and has rung, because one of those
may have its place at the front of the line.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from everbell.clock import Clock
from everbell.engine.entry import Phase
from everbell.engine.floor import Floor
from everbell.engine.flow import Flow
from everbell.engine.partition import Partition


class LeftLines:
    """The lines that are still to be set going, by partition."""

    def __init__(self, clock: Clock, floor: Floor, partitions: Sequence[Partition]) -> None:
        self._clock = clock
        self._floor = floor
        self._partitions = partitions
        self._left: dict[int, list[tuple[str, str]]] = {}
        self.is_soon = False
        """Whether there are lines that may go in a moment, and not only when a pause is over."""

    def add(self, partition: int, tenant: str, key: str) -> None:
        self._left.setdefault(partition, []).append((tenant, key))

    def forget(self, partitions: Container[int]) -> None:
        for index in [index for index in self._left if index in partitions]:
            del self._left[index]

    def to_go(self) -> list[tuple[int, str, str]]:
        """Those that may go now, with their partition. They are no longer left."""
        going: list[tuple[int, str, str]] = []
        elapsed_ms = self._clock.elapsed_ms()
        read = [index for index in self._left if _is_read(self._partitions[index], elapsed_ms)]
        self.is_soon = len(read) < len(self._left)
        stopped = {index: self._stopped(self._partitions[index], self._left[index]) for index in read}
        ahead = self._keys_ahead(self._clock.now()) if any(None in found.values() for found in stopped.values()) else ()
        for index, found in stopped.items():
            held_up = {name for name, flow in found.items() if flow is not None or name in ahead}
            self.is_soon |= any(flow is None or not flow.paused for name, flow in found.items() if name in held_up)
            going.extend((index, *name) for name in found if name not in held_up)
            self._left[index] = [name for name in found if name in held_up]
            if not held_up:
                del self._left[index]
        return going

    def _stopped(self, partition: Partition, lines: list[tuple[str, str]]) -> dict[tuple[str, str], Flow | None]:
        """For each line the flow behind whose skip others of its key may be, if there is one."""
        skips = [(flow, skip) for flow, skip in partition.skips.items()]
        return {
            name: next((flow for flow, skip in skips if flow.tenant.name == name[0] and skip.has_key(*name)), None)
            for name in lines
        }

    def _keys_ahead(self, now: int) -> set[tuple[str, str | None]]:
        """The keys of events in memory that are due but have not rung, or that a user is changing."""
        entries = self._floor.entries.values()
        due = (entry for entry in entries if entry.event.run_at <= now)
        return {(entry.event.tenant, entry.event.key) for entry in due if entry.phase in (Phase.AHEAD, Phase.SETTLING)}


def _is_read(partition: Partition, elapsed_ms: int) -> bool:
    return partition.next_at > partition.taken_at and elapsed_ms >= partition.quiet_until_ms
