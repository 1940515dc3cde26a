"""The periodic work of an engine: the loader's front moves, old records are deleted, and events are counted."""

from __future__ import annotations

import asyncio

from everbell.clock import Clock
from everbell.engine.intake import Intake
from everbell.engine.loader import Loader
from everbell.engine.observer import Observer
from everbell.engine.ordering import Lanes
from everbell.engine.pauses import Pauses
from everbell.engine.silent_attempts import SilentAttempts
from everbell.engine.stall_watch import StallWatch
from everbell.engine.supervisor import Supervisor
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import StoreWriter
from everbell.stores.port import Store

_SWEEP_RECORDS = 2_000
_SWEEP_S = 30.0
# The time between ticks while orphaned lines wait to start.
_ORPHANS_TICK_S = 0.1


class Upkeep:
    """Ticks until it is stopped: seldom while nothing is due, and at least as often as the clock has to be watched."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        writer: StoreWriter,
        memory: WorkingSet,
        loader: Loader,
        lanes: Lanes,
        intake: Intake,
        pauses: Pauses,
        observer: Observer,
        silent_attempts: SilentAttempts,
        stalls: StallWatch,
        supervisor: Supervisor,
        lookahead_ms: int,
        watch_clock_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._writer = writer
        self._memory = memory
        self._loader = loader
        self._lanes = lanes
        self._intake = intake
        self._pauses = pauses
        self._observer = observer
        self._silent_attempts = silent_attempts
        self._stalls = stalls
        self._supervisor = supervisor
        self._lookahead_ms = lookahead_ms
        self._watch_clock_s = watch_clock_s
        self._swept_at = clock.now()
        self._ticker: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Count the events, and tick from now on."""
        self._writer.read(self._count)
        self.tick()

    def tick(self) -> None:
        """Move the loader's front as time passes, and do the periodic work."""
        self._loader.tick()
        self._writer.wake()
        self._pauses.refresh()
        self._silent_attempts.check()
        self._stalls.look()
        now = self._clock.now()
        is_orphaned = self._lanes.resume_orphaned()
        if self._intake.needs_sequences and self._intake.is_owner:
            self._writer.read(self._take_sequences)
        if now - self._swept_at >= _SWEEP_S * 1_000:
            self._swept_at = now
            self._writer.read(self._sweep)
        history = self._observer.history
        if now >= history.due_at:
            self._observer.sample()
            self._writer.read(self._count)
        seconds = max(self._loader.next_at() - now, self._lookahead_ms) / 4_000
        if not history.is_quiet:
            seconds = min(seconds, (history.due_at - now) / 1_000)
        self._tick_within(_ORPHANS_TICK_S if is_orphaned else seconds)

    def tick_for(self, run_at: int) -> None:
        """Tick earlier, because an event is due before the next events that the loader expects."""
        self._tick_within(max(run_at - self._near_at(), 0) / 1_000)

    def stop(self) -> None:
        """Tick no more."""
        if self._ticker is not None:
            self._ticker.cancel()

    def _near_at(self) -> int:
        return self._clock.now() + self._lookahead_ms

    def _tick_within(self, seconds: float) -> None:
        """Tick after this time at the latest, and often enough to notice that the clock was set."""
        self.stop()
        seconds = min(seconds, self._watch_clock_s)
        self._ticker = self._supervisor.call_later(seconds, self.tick)
        self._memory.expected_at = self._near_at() + int(seconds * 1_000) if seconds else 0

    async def _take_sequences(self) -> None:
        """Reserve sequence numbers in the store, long before the current ones run out."""
        self._intake.count_from(await self._store.raise_fence({}))

    async def _count(self) -> None:
        """Count the events of each tenant, for metrics and the history."""
        self._observer.history.counts = await self._store.counts()

    async def _sweep(self) -> None:
        """Delete records whose retention is over, in batches."""
        if await self._store.sweep(self._clock.now(), _SWEEP_RECORDS) >= _SWEEP_RECORDS:
            self._writer.read(self._sweep)
