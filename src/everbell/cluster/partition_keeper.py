"""The partitions of this node: the keeper starts and stops them on the engine, and releases them in the log.

The keeper works towards the wanted state instead of executing orders one by one. So a store that is away, a fence that
another node raised, or an order that was withdrawn need no special case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from everbell.clock import Clock
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.supervised_task import OnHalt, begin
from everbell.core.cluster import Ceded, Start, Stop
from everbell.engine.engine import Engine
from everbell.errors import Fenced, StoreError

_log = logging.getLogger("everbell.cluster")

_AGAIN_S = 0.2

Released = Callable[[Mapping[int, int]], None]
"""Called with partitions that this node released, each with its epoch in the log."""


class PartitionKeeper:
    """Runs the partitions that this incarnation owns."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        settings: ClusterSettings,
        base_epoch: int,
        released: Released,
        on_halt: OnHalt,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._settings = settings
        self._base_epoch = base_epoch
        """The difference between the store's epochs and the log's."""
        self._released = released
        self._on_halt = on_halt
        self._wanted: dict[int, Start] = {}
        self._quiet_until_ms: dict[int, int] = {}
        """For partitions of a dead owner: until when its last requests may still be in flight."""
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._hand_overs: set[asyncio.Task[None]] = set()

    @property
    def _quiet_ms(self) -> int:
        """How long the requests of a dead owner may still be in flight."""
        return self._engine.tenants.sending_max_ms

    def start(self) -> None:
        self._runner = begin(self._run(), "everbell-keeper", self._on_halt)

    async def stop(self) -> None:
        """Stop all work on partitions."""
        tasks = [*self._hand_overs, *([self._runner] if self._runner is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def want(self, start: Start) -> None:
        """This node owns the partition."""
        self._wanted[start.partition] = start
        if start.clean:
            self._quiet_until_ms.pop(start.partition, None)
        else:
            # Counted from now: another node may get the partition before the store lets this one start it.
            self._quiet_until_ms[start.partition] = self._clock.elapsed_ms() + self._quiet_ms
        self._wake.set()

    def cede(self, ceded: Ceded) -> None:
        """This node no longer owns the partition in this epoch."""
        wanted = self._wanted.get(ceded.partition)
        if wanted is not None and wanted.epoch == ceded.epoch:
            del self._wanted[ceded.partition]
            self._quiet_until_ms.pop(ceded.partition, None)
        if self._engine.epochs.get(ceded.partition) == self._base_epoch + ceded.epoch:
            self._engine.drop([ceded.partition])

    def hand_over(self, stops: list[Stop]) -> None:
        """Other nodes get these partitions: stop, drain and release them."""
        epochs = {stop.partition: stop.epoch for stop in stops}
        for partition in epochs:
            self._wanted.pop(partition, None)
        busy = self._engine.busy(epochs)
        idle = {partition: epoch for partition, epoch in epochs.items() if partition not in busy}
        if idle:
            self._begin(self._hand_over(idle))
        for partition in sorted(busy):  # One by one: a slow receiver delays one partition, not all.
            self._begin(self._hand_over({partition: epochs[partition]}))

    def lose_everything(self) -> None:
        """This incarnation owns no partition any more."""
        self._wanted.clear()
        self._quiet_until_ms.clear()
        # The next incarnation may own the same partitions: a hand-over of this one must not release them.
        for hand_over in self._hand_overs:
            hand_over.cancel()
        self._engine.drop(list(self._engine.epochs))

    @property
    def is_settled(self) -> bool:
        """Whether everything that is wanted runs."""
        return all(self._runs(start) for start in self._wanted.values())

    @property
    def is_quiet(self) -> bool:
        """Whether no request of an earlier owner of these partitions can be in flight any more. Before that, this node
        must not leave as if its partitions were clean: their next owner would not wait for these requests."""
        return max(self._quiet_until_ms.values(), default=0) <= self._clock.elapsed_ms()

    def _runs(self, start: Start) -> bool:
        return self._engine.epochs.get(start.partition) == self._base_epoch + start.epoch

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            missing = [start for start in self._wanted.values() if not self._runs(start)]
            for clean in (True, False):
                some = [start for start in missing if start.clean is clean]
                if some and not await self._take(some, clean):
                    self._wake.set()
                    await asyncio.sleep(_AGAIN_S)
            await self._wake.wait()

    async def _take(self, starts: list[Start], clean: bool) -> bool:
        """Start partitions; False: try again soon, with the state that is wanted then."""
        quiet_ms = 0 if clean else self._quiet_ms
        epochs = {start.partition: self._base_epoch + start.epoch for start in starts}
        begun_ms = self._clock.elapsed_ms()
        try:
            await self._engine.take(epochs, quiet_ms=quiet_ms)
        except Fenced as fenced:
            # Another node has played more of the log than this one, which will read the same soon. The rest can start.
            _log.info("other nodes have fenced the partitions %s", fenced.partitions)
            for start in starts:
                # Unless the partition has come back to this node in a later epoch.
                if start.partition in fenced.partitions and self._wanted.get(start.partition) is start:
                    del self._wanted[start.partition]
            return False
        except StoreError as away:
            _log.warning("%d partitions cannot be started yet: %s", len(starts), away)
            return False
        now_ms = self._clock.elapsed_ms()
        _log.debug("%d partitions started after %d ms", len(starts), now_ms - begun_ms)
        until_ms = now_ms + quiet_ms
        for start in starts:
            if self._wanted.get(start.partition) is not start:
                self._engine.drop([start.partition])  # The node lost it while it was being started.
            elif quiet_ms:
                self._quiet_until_ms[start.partition] = until_ms
        return True

    async def _hand_over(self, stops: Mapping[int, int]) -> None:
        begun_ms = self._clock.elapsed_ms()
        is_clean = await self._engine.release(list(stops), self._settings.handover_ms / 1_000)
        now_ms = self._clock.elapsed_ms()
        _log.debug(
            "%d partitions released %s after %d ms",
            len(stops),
            "cleanly" if is_clean else "with attempts in flight",
            now_ms - begun_ms,
        )
        until_ms = max((self._quiet_until_ms.get(partition, 0) for partition in stops), default=0)
        if not is_clean:
            until_ms = now_ms + self._quiet_ms
        if until_ms > now_ms:
            # The next owner takes a release as the end of all requests of this node.
            self._quiet_until_ms.update(dict.fromkeys(stops, until_ms))
            await asyncio.sleep((until_ms - now_ms) / 1_000)
        for partition in stops:
            if partition not in self._wanted:
                self._quiet_until_ms.pop(partition, None)
        self._released(stops)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = begin(work, "everbell-hand-over", self._on_halt)
        self._hand_overs.add(task)
        task.add_done_callback(self._hand_overs.discard)
