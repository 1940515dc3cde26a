"""Who may start an attempt now: fair between tenants, capped per target.

Tenants take turns, and within a tenant its flows do; a turn starts at most `QUANTUM` attempts. A flow at its cap is
out of the ring until one of its attempts is settled, so a slow target costs the others nothing. A flow that has used
up its pace, or whose breaker is open, has a cap of nothing until a timer says otherwise; one that is paused, until it
is resumed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from everbell.channels.port import Delivery
from everbell.clock import Clock
from everbell.core.retry import Outcome
from everbell.core.verdict import is_over
from everbell.engine.agenda import NEVER
from everbell.engine.breaker import Breaker
from everbell.engine.entry import Entry, Phase
from everbell.engine.flow import Flow
from everbell.engine.pace import Pace

_log = logging.getLogger("everbell.engine")

QUANTUM = 64
SLICE = 512
"""How many attempts start before others get a turn on the loop."""
AT_ONCE = 16
"""When so many attempts are settled together, the next ones start at once: whoever settles quickly, as a handler does
that does not wait, would need a turn of the loop for each few. Settled one by one, they share the next turn."""


class Dispatcher:
    """Starts attempts for entries that are ready, and takes their outcomes back."""

    def __init__(self, clock: Clock, epochs: Mapping[int, int], in_flight_max: int) -> None:
        self.epochs = epochs
        self.in_flight = 0
        self.lease_until_ms = NEVER
        """On the clock of elapsed time: no attempt begins after this, for another node may own everything by then."""
        self.on_settled: Callable[[Sequence[Entry], Outcome], None] = lambda entries, outcome: None
        self.on_given_back: Callable[[Entry], bool] = lambda entry: True
        """Returns whether an entry whose attempt did not take place is to be attempted here again."""
        self.on_expired: Callable[[Entry], None] = lambda entry: None
        self.recall: Callable[[Entry], bool] = lambda entry: False
        """Takes back an entry that was handed to a channel and waits there for a worker, if it does."""
        self.on_lease_over: Callable[[], None] = lambda: None
        self.on_begun: Callable[[int, int], None] = lambda late_ms, count: None
        """Told how late how many first attempts began."""
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._ring: deque[str] = deque()
        self._flows: dict[str, deque[Flow]] = {}
        self._pumping = False
        self._left = 0
        """How many more attempts may start in this turn of the loop."""
        self._stopped = False
        self._drained: asyncio.Event | None = None

    def enqueue(self, entry: Entry) -> None:
        """The entry is due and its turn in its key has come."""
        flow = entry.flow
        flow.ready.append(entry)
        if not flow.in_ring and flow.in_flight < flow.cap:
            self._enter_ring(flow)
            self._pump_soon()

    def resume(self, flow: Flow) -> None:
        """The flow may be able to start more than it could."""
        if flow.ready and not flow.in_ring and flow.in_flight < flow.cap:
            self._enter_ring(flow)
            self._pump_soon()

    def withdraw(self, entry: Entry) -> bool:
        """Take back an entry that waits for a slot of its target, or for a worker; False when it does not."""
        try:
            entry.flow.ready.remove(entry)
        except ValueError:
            return self.recall(entry)
        return True

    def begin_all(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Start attempts, unless there is nothing to deliver any more."""
        entries = cast("Sequence[Entry]", deliveries)  # What channels have is what they were given.
        if self._stopped:
            return ()
        if self._clock.elapsed_ms() >= self.lease_until_ms:
            self.on_lease_over()
            return ()
        now, ready, under_way = self._clock.now(), Phase.READY, Phase.UNDER_WAY
        begun: list[Entry] = []
        for entry in entries:
            event, flow = entry.event, entry.flow
            if entry.phase is not ready:
                continue
            if flow.breaker is not None and flow.in_flight >= flow.cap:
                # A worker asks for what was handed to its queue before the breaker opened.
                flow.ready.append(entry)
                continue
            if (event.expires_ms is not None or event.repeat is not None) and is_over(event, now):
                self.on_expired(entry)
                continue
            entry.phase = under_way
            entry.started_at = now
            entry.under_way = True
            flow.in_flight += 1
            begun.append(entry)
        self.in_flight += len(begun)
        self._note_lateness(begun, now)
        return begun

    def settle_all(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Attempts are over, with the same outcome."""
        entries = cast("Sequence[Entry]", deliveries)
        heard = None
        for entry in entries:
            assert entry.under_way, "an attempt is settled once"
            flow = entry.flow
            entry.under_way = False
            flow.in_flight -= 1
            # Many events in one request that failed are one failure.
            if flow.breaker is not None and flow is not heard and entry.is_judged:
                heard = flow
                self._hear(flow, flow.breaker, outcome)
            if flow.ready and not flow.in_ring:
                self._enter_ring(flow)
        self.in_flight -= len(entries)
        self.on_settled(entries, outcome)
        if self._ring and not self._pumping:
            if len(entries) >= AT_ONCE:
                self._pump()
            else:
                self._pump_soon()
        if self._drained is not None and self.in_flight == 0:
            self._drained.set()

    def give_back(self, entry: Entry) -> None:
        """The attempt did not take place: the entry is ready again, unless it was cancelled meanwhile."""
        if entry.doomed:
            self.settle_all((entry,), Outcome("lost"))
            return
        entry.under_way = False
        entry.phase = Phase.READY
        entry.flow.in_flight -= 1
        self.in_flight -= 1
        if self.on_given_back(entry):
            self.enqueue(entry)
        if self._drained is not None and self.in_flight == 0:
            self._drained.set()

    def halt(self) -> None:
        """Start nothing more."""
        self._stopped = True

    async def stop(self, deadline_s: float) -> bool:
        """Start nothing more and wait for what is under way; False when the deadline passed first."""
        self.halt()
        if self.in_flight:
            self._drained = asyncio.Event()
            try:
                await asyncio.wait_for(self._drained.wait(), deadline_s)
            except TimeoutError:
                return False
        return True

    def _hear(self, flow: Flow, breaker: Breaker, outcome: Outcome) -> None:
        was_probing = breaker.state == "probing"
        if not breaker.hear(outcome):
            return
        flow.recap()
        if breaker.state == "closed":
            _log.warning("tenant %s: %s works again", flow.tenant.name, flow.group)
            return
        pause_s = breaker.policy.pause_ms / 1_000
        if not was_probing:
            _log.warning(
                "tenant %s: %d attempts at %s failed in a row; it is probed every %g s until it works",
                flow.tenant.name,
                breaker.failures,
                flow.group,
                pause_s,
            )
        asyncio.get_running_loop().call_later(pause_s, self._probe, flow, breaker)

    def _probe(self, flow: Flow, breaker: Breaker) -> None:
        if flow.breaker is breaker and breaker.state == "open":
            breaker.probe()
            flow.recap()
            self.resume(flow)

    def _wait_for_pace(self, flow: Flow, pace: Pace) -> None:
        flow.spent = True
        flow.recap()
        asyncio.get_running_loop().call_later(pace.wait_ms / 1_000, self._go_on, flow)

    def _go_on(self, flow: Flow) -> None:
        flow.spent = False
        flow.recap()
        self.resume(flow)

    def _note_lateness(self, begun: Sequence[Entry], now: int) -> None:
        """Those that were due at the same time, as most of a batch are, are told together."""
        run_at, count = 0, 0
        for entry in begun:
            if entry.attempt != 1:
                continue
            if entry.event.run_at != run_at:
                if count:
                    self.on_begun(now - run_at, count)
                run_at, count = entry.event.run_at, 0
            count += 1
        if count:
            self.on_begun(now - run_at, count)

    def _enter_ring(self, flow: Flow) -> None:
        flow.in_ring = True
        name = flow.tenant.name
        flows = self._flows.get(name)
        if flows is None:
            self._flows[name] = deque((flow,))
            self._ring.append(name)
        else:
            flows.append(flow)

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_anew)

    def _pump_anew(self) -> None:
        self._left = SLICE
        self._pump()

    def _pump(self) -> None:
        self._pumping = True
        while self._ring and self._left > 0 and self.in_flight < self._in_flight_max and not self._stopped:
            self._left -= self._turn(self._ring[0])
        self._pumping = False
        if self._ring and self.in_flight < self._in_flight_max and not self._stopped:
            self._pump_soon()

    def _turn(self, name: str) -> int:
        """One turn of one tenant; returns how many entries it used up."""
        flows = self._flows[name]
        flow = flows.popleft()
        batch = self._take(flow)
        if batch:
            flow.channel.start(batch)
        if flow.pace is not None and flow.ready and not flow.spent and not flow.pace.allows(self._clock.elapsed_ms()):
            self._wait_for_pace(flow, flow.pace)
        # Asked after the start: what has expired takes no slot, and nobody would come back for the others.
        if flow.ready and flow.in_flight < flow.cap:
            flows.append(flow)
        else:
            flow.in_ring = False
        if flows:
            self._ring.rotate(-1)
        else:
            self._ring.popleft()
            del self._flows[name]
        return len(batch) or 1

    def _take(self, flow: Flow) -> list[Entry]:
        """The next ready entries of the flow, those that are gone dropped."""
        batch: list[Entry] = []
        room = min(max(QUANTUM, flow.tenant.batch), flow.cap - flow.in_flight, self._in_flight_max - self.in_flight)
        ready, pace, is_ready = flow.ready, flow.pace, Phase.READY
        if pace is not None:
            room = min(room, pace.allows(self._clock.elapsed_ms()))
        while ready and len(batch) < room:
            entry = ready.popleft()
            if entry.phase is is_ready:
                batch.append(entry)
        if pace is not None:
            pace.take(len(batch))
        return batch
