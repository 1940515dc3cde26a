"""Pauses of flows and keys: none of their attempts starts until the pause is over.

A flow whose handler is not registered is paused, too. It is looked at again when a handler is registered, and every
few seconds, because a handler may be registered outside the loop of the engine.

A flow whose tenant or target is paused has a cap of 0, like a flow whose breaker is open. It keeps a small part of its
events in memory, in order. The others stay in the store, or go back there behind its skips, where the loader leaves
them out. A paused key has its head in memory, held back, and its line in the store.

Attempts in flight end as usual. No event is changed by a pause, so the cost of pausing and resuming does not depend on
the number of paused events. After a restart, flows are created paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from everbell.channels.queue import QueueChannel
from everbell.clock import Clock
from everbell.core.pause import Held, Pause, held_by
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase
from everbell.engine.flow import Flow
from everbell.engine.ordering import Lanes
from everbell.engine.supervisor import Supervisor
from everbell.engine.working_set import WorkingSet

_log = logging.getLogger("everbell.engine")

_QUEUE = "queue:"
_WAIT_S_MAX = 86_400.0  # An event loop does not accept a timer of a year.

_TRIM_S = 0.02


class Pauses:
    """Everything that is paused on a node."""

    def __init__(
        self,
        clock: Clock,
        memory: WorkingSet,
        lanes: Lanes,
        dispatcher: Dispatcher,
        queues: QueueChannel,
        supervisor: Supervisor,
        handler_check_s: float,
    ) -> None:
        self.on: tuple[Pause, ...] = ()
        """The pauses in force."""
        self._clock = clock
        self._memory = memory
        self._lanes = lanes
        self._dispatcher = dispatcher
        self._queues = queues
        self._supervisor = supervisor
        self._handler_check_s = handler_check_s
        self._known: tuple[Pause, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._trimmer: asyncio.TimerHandle | None = None
        self._looker: asyncio.TimerHandle | None = None
        self._missing: set[str] = set()

    def follow(self, pauses: Iterable[Pause]) -> None:
        """Replace all pauses. After this returns, nothing that they pause starts."""
        with self._supervisor.critical():
            self._known = tuple(pauses)
            self.refresh()

    def refresh(self) -> None:
        """Apply the pauses that are in force at this time."""
        if not (self._known or self.on):
            return
        now = self._clock.now()
        on = tuple(pause for pause in self._known if pause.is_on(now))
        self._wake_for(on, now)
        if on != self.on:
            self.on = on
            self._hold(held_by(on))

    def stop(self) -> None:
        """Cancel the timers: no pause ends by itself any more."""
        for timer in (self._timer, self._trimmer, self._looker):
            if timer is not None:
                timer.cancel()
        self._timer = self._trimmer = self._looker = None

    def look_for_handlers(self) -> None:
        """Let the flows go on that waited for a handler, if it is registered now."""
        if self._looker is not None:
            self._looker.cancel()
            self._looker = None
        self._hold_flows()

    def _wake_for(self, on: tuple[Pause, ...], now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [pause.until_at for pause in on if pause.until_at is not None]
        if ends:
            wait_s = min((min(ends) - now) / 1_000, _WAIT_S_MAX)
            self._timer = self._supervisor.call_later(wait_s, self.refresh)

    def _hold(self, held: Held) -> None:
        memory = self._memory
        if held == memory.flows.held:
            return
        memory.flows.held = held
        self._hold_flows()

    def _hold_flows(self) -> None:
        """Pause the flows that have to wait, and resume the others."""
        memory, resumed = self._memory, []
        for flow in memory.flows.all():
            is_held = memory.flows.is_held(flow)
            if is_held and not flow.paused:
                self._pause(flow)
            elif flow.paused and not is_held:
                resumed.append(flow)
        memory.flows.update_paused_share()
        self._trim()
        self._lanes.pause(memory.flows.held.keys)
        for flow in resumed:
            self._resume(flow)
        memory.on_room()

    def _pause(self, flow: Flow) -> None:
        flow.paused = True
        flow.update_cap()
        self._memory.starved.discard(flow)
        if flow.group.startswith(_QUEUE):
            # Entries that wait for a worker are older than those in `ready`.
            entries = map(self._memory.entries.get, self._queues.recall(flow.tenant.name, _queue_of(flow)))
            flow.ready.extendleft([entry for entry in entries if entry is not None][::-1])

    def _resume(self, flow: Flow) -> None:
        flow.paused = False
        flow.update_cap()
        if flow.skips:
            self._memory.starved.add(flow)
        self._dispatcher.resume(flow)

    def trim_soon(self) -> None:
        """Trim in a moment, once for many flows: a paused tenant may have thousands."""
        if self._trimmer is None:
            self._trimmer = self._supervisor.call_later(_TRIM_S, self._trim)

    def _trim(self) -> None:
        """Send the latest entries of paused flows that hold more than their share back to the store."""
        self._trimmer = None
        self._watch_for_handlers()
        memory = self._memory
        share = memory.budget.paused_share
        over = {flow for flow in memory.flows.all() if flow.paused and flow.held_bytes > share}
        if not over:
            return
        entries = [entry for entry in memory.entries.values() if entry.flow in over]
        entries.sort(key=lambda entry: entry.event.position, reverse=True)
        for entry in entries:
            if entry.flow.held_bytes > share:
                self._return_to_store(entry)
        for flow in over:
            flow.ready = deque(entry for entry in flow.ready if entry.phase is Phase.READY)

    def _watch_for_handlers(self) -> None:
        """Set the timer for the next look, if events wait for a handler, and say so once for each handler."""
        missing = {flow.group for flow in self._memory.flows.all() if self._memory.flows.lacks_handler(flow.group)}
        for group in sorted(missing - self._missing):
            _log.warning("events wait for %s: no handler of that name is registered in this program", group)
        self._missing = missing
        if missing and self._looker is None:
            self._looker = self._supervisor.call_later(self._handler_check_s, self.look_for_handlers)

    def _return_to_store(self, entry: Entry) -> None:
        if entry.phase is Phase.AHEAD or (entry.phase is Phase.READY and entry.event.key is None):
            self._memory.return_to_store(entry, entry.flow)
        elif entry.phase is Phase.READY:
            self._lanes.return_to_store(entry)


def recall(queues: QueueChannel, entry: Entry) -> bool:
    """Take an entry back that waits for a worker. Returns False if it does not wait for one."""
    flow = entry.flow
    if not flow.group.startswith(_QUEUE):
        return False
    return bool(queues.recall(flow.tenant.name, _queue_of(flow), entry.event.sequence))


def _queue_of(flow: Flow) -> str:
    return flow.group.removeprefix(_QUEUE)
