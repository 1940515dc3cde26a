"""The partitions of this node: what the value says is started and stopped on the engine, and released in the log.

It works towards what is wanted instead of carrying out orders, so a store that is away, a fence that was raised by
another or an order that was taken back meanwhile need no case of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from everbell.clock import Clock
from everbell.cluster.settings import ClusterSettings
from everbell.cluster.vital import OnHalt, begin
from everbell.core.cluster import Ceded, Start, Stop
from everbell.engine.engine import Engine
from everbell.errors import Fenced, StoreError

_log = logging.getLogger("everbell.cluster")

_AGAIN_S = 0.2

Released = Callable[[Mapping[int, int]], None]
"""Told of partitions that were let go of, each with its epoch in the log."""


class Keeper:
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
        """What the store's epochs are ahead of the log's."""
        self._released = released
        self._on_halt = on_halt
        self._wanted: dict[int, Start] = {}
        self._quiet_until_ms: dict[int, int] = {}
        """For partitions that were taken from a dead owner: until when that one's requests may be on their way."""
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._hand_overs: set[asyncio.Task[None]] = set()

    @property
    def _quiet_ms(self) -> int:
        """How long the requests of a dead owner may still be on their way."""
        return max(self._settings.quiet_ms, self._engine.tenants.live_timeout_ms)

    def start(self) -> None:
        self._runner = begin(self._run(), "everbell-keeper", self._on_halt)

    async def stop(self) -> None:
        """Touch nothing any more."""
        tasks = [*self._hand_overs, *([self._runner] if self._runner is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def want(self, start: Start) -> None:
        """The partition is ours."""
        self._wanted[start.partition] = start
        if start.clean:
            self._quiet_until_ms.pop(start.partition, None)
        else:
            # From here on, for it may have to go to somebody else before the store lets it start.
            self._quiet_until_ms[start.partition] = self._clock.elapsed_ms() + self._quiet_ms
        self._wake.set()

    def cede(self, ceded: Ceded) -> None:
        """The partition is no longer ours in this epoch."""
        wanted = self._wanted.get(ceded.partition)
        if wanted is not None and wanted.epoch == ceded.epoch:
            del self._wanted[ceded.partition]
        if self._engine.epochs.get(ceded.partition) == self._base_epoch + ceded.epoch:
            self._engine.drop([ceded.partition])

    def hand_over(self, stops: list[Stop]) -> None:
        """These are to go to others: stop, drain, release."""
        epochs = {stop.partition: stop.epoch for stop in stops}
        for partition in epochs:
            self._wanted.pop(partition, None)
        busy = self._engine.busy(epochs)
        idle = {partition: epoch for partition, epoch in epochs.items() if partition not in busy}
        if idle:
            self._begin(self._hand_over(idle))
        for partition in sorted(busy):  # Each by itself: a slow receiver holds up one partition, not all.
            self._begin(self._hand_over({partition: epochs[partition]}))

    def lose_everything(self) -> None:
        """This incarnation owns nothing any more, whatever it was doing."""
        self._wanted.clear()
        # The next incarnation may own the same partitions: nothing of this one may let go of them then.
        for hand_over in self._hand_overs:
            hand_over.cancel()
        self._engine.drop(list(self._engine.epochs))

    @property
    def is_settled(self) -> bool:
        """Whether everything that is wanted runs."""
        return all(self._runs(start) for start in self._wanted.values())

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
        """Start partitions; False: try again in a while, with what is wanted then."""
        quiet_ms = 0 if clean else self._quiet_ms
        epochs = {start.partition: self._base_epoch + start.epoch for start in starts}
        begun_ms = self._clock.elapsed_ms()
        try:
            await self._engine.take(epochs, quiet_ms=quiet_ms)
        except Fenced as fenced:
            # Somebody is ahead of what we have played: the log will say so. The others can start.
            _log.info("partitions %s are fenced by others", fenced.partitions)
            for start in starts:
                # Unless it has come back to us meanwhile, in a later epoch.
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
                self._engine.drop([start.partition])  # It was ceded while it was started.
            elif quiet_ms:
                self._quiet_until_ms[start.partition] = until_ms
        return True

    async def _hand_over(self, stops: Mapping[int, int]) -> None:
        begun_ms = self._clock.elapsed_ms()
        is_clean = await self._engine.release(list(stops), self._settings.handover_ms / 1_000)
        now_ms = self._clock.elapsed_ms()
        _log.debug(
            "%d partitions let go of %s after %d ms",
            len(stops),
            "cleanly" if is_clean else "with attempts under way",
            now_ms - begun_ms,
        )
        until_ms = max((self._quiet_until_ms.pop(partition, 0) for partition in stops), default=0)
        if not is_clean:
            until_ms = now_ms + self._quiet_ms
        if until_ms > now_ms:
            # The next owner takes a release for the end of all requests.
            await asyncio.sleep((until_ms - now_ms) / 1_000)
        self._released(stops)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = begin(work, "everbell-hand-over", self._on_halt)
        self._hand_overs.add(task)
        task.add_done_callback(self._hand_overs.discard)
