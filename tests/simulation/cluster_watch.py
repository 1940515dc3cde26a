"""Observations inside the nodes of a simulated cluster, beside those of clients and receivers.

The watch reports to the checker which entries every node has played, and counts how often a safeguard was needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from everbell.core.cluster import Value
from everbell.engine.engine import Engine
from everbell.engine.entry import Entry
from everbell.errors import NotOwner
from everbell.logs.port import Snapshot
from tests.simulation.cluster_checker import ClusterChecker
from tests.simulation.receivers import Receivers
from tests.simulation.rough_log import LogServer
from tests.simulation.rough_node import RoughNode


class ClusterWatch:
    """Observes, and changes nothing."""

    def __init__(
        self, checker: ClusterChecker, receivers: Receivers, log: LogServer, note: Callable[[str], None]
    ) -> None:
        self.seen: Counter[str] = Counter()
        """The number of observed events of each kind, besides the faults."""
        self.unclean: set[tuple[int, int]] = set()
        """The (partition, epoch) whose previous owner released the partition before all was stored."""
        self.snapshots: list[Snapshot] = []
        self._checker = checker
        self._receivers = receivers
        self._log = log
        self._note = note
        self._played = 0

    def watch(self, node: RoughNode) -> None:
        """Observe a node from now on."""
        assert node.node is not None
        assert node.engine is not None
        engine: Any = node.engine
        keeper: Any = node.node._keeper
        player: Any = node.node.player
        self._after(player, "_become", lambda _, value: self._play(node, value))
        self._after(engine._lanes, "_dispatch", lambda _, entry: self._count_wait(engine, entry))
        self._before(keeper, "lose_everything", lambda: self._count(bool(engine.epochs), "drops of everything"))
        self._before(node.node, "_check_lease", lambda: self._count(True, "attempts refused by the lease"))
        self._count_refusals(engine._intake)
        self._watch_releases(engine)

    def given_up(self, epochs: Mapping[int, int]) -> None:
        """The owner released these partitions before all was stored: an event may be repeated in any later epoch."""
        self.unclean.update((partition, epoch + 1) for partition, epoch in epochs.items())

    def taken(self, epochs: Mapping[int, int]) -> None:
        """A node has raised fences."""
        for partition, epoch in epochs.items():
            if any(attempt.epoch < epoch for attempt in self._receivers.under_way.get(partition, ())):
                self.seen["takeovers in the middle of a send"] += 1

    def _count_wait(self, engine: Engine, entry: Entry) -> None:
        partition = engine._partitions[entry.event.partition]
        is_quiet = partition.wait_ms(entry.event, engine._clock) > 0
        self._count(is_quiet, "waits for a dead owner")

    def _play(self, node: RoughNode, value: Value) -> None:
        self._checker.played(node.title, value)
        if value.index <= self._played:
            return
        self._played = value.index
        self._note(f"entry {value.index}")
        for part in value.partitions:
            if part.epoch == value.index and not part.clean:
                self.seen["takeovers"] += 1
        last = value.transitions[-1] if value.transitions else None
        if last is not None and last.index == value.index:
            self.seen[f"log: {last.kind}"] += 1
            if last.kind == "remove" and "store" in last.reason:
                self.seen["gave way, without the store"] += 1
            elif last.kind == "remove":
                self.seen["left by their own clock" if last.by == last.what else "removed by others"] += 1
        snapshot = self._log.shared.snapshot
        if snapshot is not None and (not self.snapshots or self.snapshots[-1].index < snapshot.index):
            self.snapshots.append(snapshot)

    def _watch_releases(self, engine: Any) -> None:
        release = engine.release

        async def released(partitions: list[int], deadline_s: float) -> bool:
            epochs = {partition: engine.epochs.get(partition, 0) for partition in partitions}
            is_clean: bool = await release(partitions, deadline_s)
            if not is_clean:
                self.seen["releases in the middle of a send"] += 1
                self.given_up(epochs)
            return is_clean

        engine.release = released

    def _count_refusals(self, intake: Any) -> None:
        owned_one = intake._owned_one

        def counted(*args: Any) -> int:
            try:
                partition: int = owned_one(*args)
            except NotOwner:
                self.seen["events refused by who is not the owner"] += 1
                raise
            return partition

        intake._owned_one = counted

    def _count(self, happened: bool, what: str) -> None:
        self.seen[what] += happened

    def _after(self, thing: Any, method: str, tell: Callable[[Any, Any], None]) -> None:
        """Call `tell` with the result and the argument of a method."""
        inner = getattr(thing, method)

        def outer(argument: Any) -> Any:
            result = inner(argument)
            tell(result, argument)
            return result

        setattr(thing, method, outer)

    def _before(self, thing: Any, method: str, tell: Callable[[], None]) -> None:
        """Call `tell` before a method without arguments is called."""
        inner = getattr(thing, method)

        def outer() -> Any:
            tell()
            return inner()

        setattr(thing, method, outer)
