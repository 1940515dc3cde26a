"""Pauses at work: flows and keys of which nothing starts until the pause is over.

A flow whose tenant or target is paused has a cap of nothing, like one whose breaker is open. It keeps a small part of
its events in memory, in their order; the others stay in the store, or go back there, behind its skips, where the loader
passes over them. A key that is paused keeps its head back, and its line is in the store.

What is under way ends as it would have. Nothing of this is stored with events, so however many are paused, pausing and
resuming cost the same; after a start the flows are made as they have to be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from everbell.channels.queue import QueueChannel
from everbell.clock import Clock
from everbell.core.pause import Held, Pause, held_by
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase
from everbell.engine.floor import Floor
from everbell.engine.flow import Flow
from everbell.engine.lanes import Lanes

_QUEUE = "queue:"
_WAIT_S_MAX = 86_400.0
"""Timers of a year are none of a loop's business."""

_TRIM_S = 0.02


class Pauses:
    """All that is paused on a node."""

    def __init__(self, clock: Clock, floor: Floor, lanes: Lanes, dispatcher: Dispatcher, queues: QueueChannel) -> None:
        self.on: tuple[Pause, ...] = ()
        """Those that hold now."""
        self._clock = clock
        self._floor = floor
        self._lanes = lanes
        self._dispatcher = dispatcher
        self._queues = queues
        self._known: tuple[Pause, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._trimmer: asyncio.TimerHandle | None = None
        dispatcher.recall = self._recall
        floor.on_paused_flow = self._trim_soon

    def follow(self, pauses: Iterable[Pause]) -> None:
        """These are the pauses from now on; when this returns, nothing of what they hold up starts any more."""
        self._known = tuple(pauses)
        self.look()

    def look(self) -> None:
        """See which pauses are over by now."""
        if not (self._known or self.on):
            return
        now = self._clock.now()
        on = tuple(pause for pause in self._known if pause.is_on(now))
        self._wake_for(on, now)
        if on != self.on:
            self.on = on
            self._hold(held_by(on))

    def stop(self) -> None:
        """Nothing goes on by itself any more."""
        for timer in (self._timer, self._trimmer):
            if timer is not None:
                timer.cancel()
        self._timer = self._trimmer = None

    def _wake_for(self, on: tuple[Pause, ...], now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [pause.until_at for pause in on if pause.until_at is not None]
        if ends:
            wait_s = min((min(ends) - now) / 1_000, _WAIT_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.look)

    def _hold(self, held: Held) -> None:
        floor = self._floor
        if held == floor.held:
            return
        floor.held = held
        resumed = []
        for flow in floor.flows():
            is_held = held.holds(flow.tenant.name, flow.group)
            if is_held and not flow.paused:
                self._pause(flow)
            elif flow.paused and not is_held:
                resumed.append(flow)
        floor.share_out_paused()
        self._trim()
        self._lanes.pause(held.keys)
        for flow in resumed:
            self._resume(flow)
        floor.on_room()

    def _pause(self, flow: Flow) -> None:
        flow.paused = True
        flow.recap()
        self._floor.starved.pop(flow, None)
        if flow.group.startswith(_QUEUE):
            # What waits for a worker is before what came after it.
            entries = map(self._floor.entries.get, self._queues.recall(flow.tenant.name, _queue_of(flow)))
            flow.ready.extendleft([entry for entry in entries if entry is not None][::-1])

    def _resume(self, flow: Flow) -> None:
        flow.paused = False
        flow.recap()
        if flow.skips:
            self._floor.starved[flow] = None
        self._dispatcher.resume(flow)

    def _trim_soon(self) -> None:
        """Not for each flow: a paused tenant may have thousands."""
        if self._trimmer is None:
            self._trimmer = asyncio.get_running_loop().call_later(_TRIM_S, self._trim)

    def _trim(self) -> None:
        """Send the last of what paused flows hold beyond their share back to the store."""
        self._trimmer = None
        floor = self._floor
        share = floor.budget.paused_share
        over = {flow for flow in floor.flows() if flow.paused and flow.held_bytes > share}
        if not over:
            return
        entries = [entry for entry in floor.entries.values() if entry.flow in over]
        entries.sort(key=lambda entry: entry.event.position, reverse=True)
        for entry in entries:
            if entry.flow.held_bytes > share:
                self._put_away(entry)
        for flow in over:
            flow.ready = deque(entry for entry in flow.ready if entry.phase is Phase.READY)

    def _put_away(self, entry: Entry) -> None:
        if entry.phase is Phase.AHEAD or (entry.phase is Phase.READY and entry.event.key is None):
            self._floor.put_away(entry, entry.flow)
        elif entry.phase is Phase.READY:
            self._lanes.put_away(entry)

    def _recall(self, entry: Entry) -> bool:
        flow = entry.flow
        if not flow.group.startswith(_QUEUE):
            return False
        return bool(self._queues.recall(flow.tenant.name, _queue_of(flow), entry.event.sequence))


def _queue_of(flow: Flow) -> str:
    return flow.group.removeprefix(_QUEUE)
