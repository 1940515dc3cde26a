"""The dispatcher starts attempts: fair between tenants, with a cap for each target.

Tenants take turns, and the flows of a tenant take turns within the tenant's turn. A turn starts at most `QUANTUM`
attempts. A tenant may have four times as many attempts in flight as the node has free slots, so the slow targets of one
tenant never take the last slots from other tenants. Leases of workers take no slot: the workers bound them. A flow at
its cap leaves the ring until one of its attempts is settled, so a slow target costs other targets nothing. A flow has a
cap of 0 while it is paused, while its breaker is open, and after it has used up its rate. A timer ends the last two.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from everbell.channels.port import Channel, Delivery, faulty
from everbell.clock import Clock
from everbell.core.retry import Outcome
from everbell.core.time import DAY_MS
from everbell.core.verdict import instead
from everbell.engine.account import SHARE, Account
from everbell.engine.agenda import NEVER
from everbell.engine.attempt_listeners import AttemptListeners
from everbell.engine.breaker import Breaker
from everbell.engine.entry import Entry, Phase
from everbell.engine.flow import Flow
from everbell.engine.kills_in_force import KillsInForce
from everbell.engine.supervisor import Supervisor
from everbell.engine.token_bucket import TokenBucket

_log = logging.getLogger("everbell.engine")

QUANTUM = 64
# The number of attempts that start before other tasks run on the loop.
SLICE = 512
# The share of a slice for a recurring event with occurrences that were missed for days: they have to be counted.
OLD_SHARE = 128
_OLD_MS = 2 * DAY_MS
# If this many attempts are settled together, the next attempts start immediately: a handler that does not wait would
# otherwise need a turn of the loop for every few events. If fewer are settled, the next attempts share the next turn.
AT_ONCE = 16


class Dispatcher:
    """Starts attempts for entries that are ready, and takes their outcomes back."""

    def __init__(
        self,
        clock: Clock,
        epochs: Mapping[int, int],
        in_flight_max: int,
        listeners: AttemptListeners,
        supervisor: Supervisor,
        kills: KillsInForce | None = None,
    ) -> None:
        self.epochs = epochs
        self.supervisor = supervisor
        self.in_flight = 0
        self.turns = 0
        """The number of turns of tenants so far: it grows while events start."""
        self.on_settled, self._on_expired, self._on_unfit, self._on_given_back, self._on_started, self._recall = (
            listeners[:6]
        )
        self._postponed, self._on_begun = listeners.postponed, listeners.begun
        self._kills = KillsInForce() if kills is None else kills
        self._clock = clock
        self._lease_until_ms = NEVER
        self._on_lease_over: Callable[[], None] = lambda: None
        self._slots_free = in_flight_max
        self._ring: deque[Account] = deque()
        # Tenants that use their share of the slots.
        self._at_share: dict[Account, None] = {}
        self._pumping = False
        self._slice_left = 0  # The number of attempts that may still start in this turn of the loop.
        self._stopped = False
        self._drained: asyncio.Event | None = None

    def limit(self, lease_until_ms: int, on_over: Callable[[], None]) -> None:
        """Start no attempt after this time, on the clock of elapsed time: another node may own all partitions by then.

        `on_over` is called when an attempt is refused for that reason.
        """
        self._lease_until_ms, self._on_lease_over = lease_until_ms, on_over

    def enqueue(self, entry: Entry) -> None:
        """Start an attempt of the entry as soon as its flow may. The entry is due, and it is the first of its key."""
        flow = entry.flow
        flow.ready.append(entry)
        if not flow.in_ring and flow.in_flight < flow.cap:
            self._enter_ring(flow)
            self._pump_soon()

    def resume(self, flow: Flow) -> None:
        """Start more attempts of the flow if its cap allows it now."""
        if flow.ready and not flow.in_ring and flow.in_flight < flow.cap:
            self._enter_ring(flow)
            self._pump_soon()

    def withdraw(self, entry: Entry) -> bool:
        """Take back an entry that waits for a slot of its target or for a worker. Returns False if it does not wait."""
        try:
            entry.flow.ready.remove(entry)
        except ValueError:
            return self._recall(entry)
        return True

    def begin_all(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Start the attempts that are still wanted, and return them."""
        try:
            return self._begin_all(cast("Sequence[Entry]", deliveries))  # A channel returns its own deliveries.
        except Exception as fault:
            self.supervisor.end(fault)
            return ()

    def _begin_all(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        if self._stopped:
            return ()
        if self._clock.elapsed_ms() >= self._lease_until_ms:
            self._on_lease_over()
            return ()
        now, ready, under_way = self._clock.now(), Phase.READY, Phase.IN_FLIGHT
        begun: list[Entry] = []
        slots = 0
        for entry in entries:
            event, flow = entry.event, entry.flow
            if entry.phase is not ready:
                continue
            if flow.breaker is not None and flow.in_flight >= flow.cap:
                # A worker leased an entry that was in its queue before the breaker opened.
                flow.ready.append(entry)
                continue
            if self._postponed is not None and self._postponed(entry, now):
                continue
            may_end = event.expires_ms is not None or event.repeat is not None or self._kills.on
            if may_end and self._ends_instead(entry, now):
                continue
            entry.phase = under_way
            entry.started_at = now
            entry.in_flight = True
            flow.in_flight += 1
            flow.account.in_flight += flow.slots
            slots += flow.slots
            begun.append(entry)
        self.in_flight += len(begun)
        self._slots_free -= slots
        self._note_lateness(begun, now)
        if self._on_begun is not None:
            self._on_begun(begun)
        return begun

    def settle_all(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """End attempts that have the same outcome."""
        try:
            self._settle_all(cast("Sequence[Entry]", deliveries), outcome)
        except Exception as fault:
            self.supervisor.end(fault)

    def _settle_all(self, entries: Sequence[Entry], outcome: Outcome) -> None:
        over = [entry for entry in entries if not entry.in_flight]
        if over:
            # The channel failed or took too long, so the attempt ended without it.
            _log.error("a channel reported %d attempts that were over: %s", len(over), outcome.result)
            entries = [entry for entry in entries if entry.in_flight]
        heard = None
        slots = 0
        for entry in entries:
            flow = entry.flow
            entry.in_flight = False
            flow.in_flight -= 1
            flow.account.in_flight -= flow.slots
            slots += flow.slots
            # If a request with many events fails, the breaker counts one failure.
            if flow.breaker is not None and flow is not heard and entry.is_judged:
                heard = flow
                self._record_outcome(flow, flow.breaker, outcome)
            if flow.ready and not flow.in_ring:
                self._enter_ring(flow)
        self.in_flight -= len(entries)
        self._slots_free += slots
        self._readmit()
        self.on_settled(entries, outcome)
        if self._ring and not self._pumping:
            if len(entries) >= AT_ONCE:
                self._pump()
            else:
                self._pump_soon()
        self._note_drained()

    def give_back(self, entry: Entry) -> None:
        """Undo the start of an attempt that did not take place. The entry is ready again, unless it was cancelled."""
        with self.supervisor.critical():
            self._give_back(entry)

    def _give_back(self, entry: Entry) -> None:
        if entry.is_cancelled:
            self.settle_all((entry,), Outcome("lost"))
            return
        entry.in_flight, entry.phase = False, Phase.READY
        flow = entry.flow
        flow.in_flight -= 1
        flow.account.in_flight -= flow.slots
        self._slots_free += flow.slots
        self.in_flight -= 1
        self._readmit()
        if self._on_given_back(entry):
            self.enqueue(entry)
        if self._ring:
            self._pump_soon()
        self._note_drained()

    def _note_drained(self) -> None:
        if self._drained is not None and self.in_flight == 0:
            self._drained.set()

    def halt(self) -> None:
        """Start no more attempts."""
        self._stopped = True

    async def stop(self, deadline_s: float) -> bool:
        """Start no more attempts, and wait for those in flight. Returns False if the deadline passed first."""
        self.halt()
        if self.in_flight:
            self._drained = asyncio.Event()
            try:
                await asyncio.wait_for(self._drained.wait(), deadline_s)
            except TimeoutError:
                return False
        return True

    def _record_outcome(self, flow: Flow, breaker: Breaker, outcome: Outcome) -> None:
        was_probing = breaker.state == "probing"
        if not breaker.record(outcome):
            return
        flow.update_cap()
        if breaker.state == "closed":
            _log.warning("tenant %s: %s works again", flow.tenant.name, flow.group)
            return
        pause_s = breaker.policy.pause_ms / 1_000
        breaker.probe_at = self._clock.now() + breaker.policy.pause_ms
        if not was_probing:
            _log.warning(
                "tenant %s: %d attempts at %s failed in a row; it is probed every %g s until it works",
                flow.tenant.name,
                breaker.failures,
                flow.group,
                pause_s,
            )
        self.supervisor.call_later(pause_s, self._probe, flow, breaker)

    def _probe(self, flow: Flow, breaker: Breaker) -> None:
        if flow.breaker is breaker and breaker.state == "open":
            breaker.probe()
            flow.update_cap()
            self.resume(flow)

    def _wait_for_pace(self, flow: Flow, pace: TokenBucket) -> None:
        flow.throttled = True
        flow.resumes_at = self._clock.now() + pace.wait_ms
        flow.update_cap()
        self.supervisor.call_later(pace.wait_ms / 1_000, self._go_on, flow)

    def _go_on(self, flow: Flow) -> None:
        flow.throttled = False
        flow.update_cap()
        self.resume(flow)

    def _note_lateness(self, begun: Sequence[Entry], now: int) -> None:
        """Report how late first attempts started, in one call for consecutive entries with the same time and flow."""
        flow, run_at, count = None, 0, 0
        for entry in begun:
            if entry.attempt != 1:
                continue
            if entry.event.run_at != run_at or entry.flow is not flow:
                if flow is not None:
                    self._on_started(flow, now - run_at, count)
                flow, run_at, count = entry.flow, entry.event.run_at, 0
            count += 1
        if flow is not None:
            self._on_started(flow, now - run_at, count)

    def _enter_ring(self, flow: Flow) -> None:
        flow.in_ring = True
        account = flow.account
        account.ring.append(flow)
        if not account.in_ring:
            account.in_ring = True
            self._ring.append(account)

    def _readmit(self) -> None:
        """Let tenants enter the ring again that have slots now."""
        for account in [account for account in self._at_share if self.slots_for(account) > 0]:
            self._at_share.pop(account)
            self._ring.append(account)

    def slots_for(self, account: Account) -> int:
        """How many further attempts the tenant may have in flight."""
        return min((SHARE * self._slots_free - account.in_flight + SHARE) // (SHARE + 1), self._slots_free)

    def could_start(self, flow: Flow) -> bool:
        """Whether nothing but this dispatcher keeps the first event of the flow from starting."""
        if not flow.ready or flow.in_flight >= flow.cap or self._stopped or self.slots_for(flow.account) <= 0:
            return False
        return self._clock.elapsed_ms() < self._lease_until_ms

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.supervisor.call_soon(self._pump_slice)

    def _pump_slice(self) -> None:
        self._slice_left = SLICE
        self._pump()

    def _pump(self) -> None:
        self._pumping = True
        while self._ring and self._slice_left > 0 and self._slots_free > 0 and not self._stopped:
            if (slots := self.slots_for(self._ring[0])) > 0:
                self._slice_left -= self._turn(self._ring[0], slots)
            else:
                self._at_share[self._ring.popleft()] = None
        self._pumping = False
        if self._ring and self._slots_free > 0 and not self._stopped:
            self._pump_soon()

    def _turn(self, account: Account, slots: int) -> int:
        """Run one turn of one tenant, with this many slots. Returns the number of entries that it used up."""
        self.turns += 1
        flows = account.ring
        flow = flows.popleft()
        batch = self._take(flow, slots)
        if batch:
            self._start(flow.channel, batch)
        if (
            flow.pace is not None
            and flow.ready
            and not flow.throttled
            and not flow.pace.allows(self._clock.elapsed_ms())
        ):
            self._wait_for_pace(flow, flow.pace)
        # Checked after the start: an expired entry takes no slot, so no later settlement would bring the flow back.
        if flow.ready and flow.in_flight < flow.cap:
            flows.append(flow)
        else:
            flow.in_ring = False
        if flows:
            self._ring.rotate(-1)
        else:
            self._ring.popleft()
            account.in_ring = False
        return OLD_SHARE if batch and self._is_old(batch[-1]) else len(batch) or 1

    def _ends_instead(self, entry: Entry, now: int) -> bool:
        """Whether the event ends, or goes on, without an attempt of this entry."""
        try:
            other = self._kills.instead(entry.event, now) or instead(entry.event, now)
        except Exception as fault:
            self._on_unfit(entry, fault)
            return True
        return other is not None and self._on_expired(entry, other)

    def _start(self, channel: Channel, batch: list[Entry]) -> None:
        """Start attempts. If the channel raises, the attempts fail: without this, their events would wait for ever."""
        try:
            channel.start(batch)
        except Exception as fault:
            outcome = faulty(fault)
            self.begin_all([entry for entry in batch if entry.phase is Phase.READY])
            self.settle_all([entry for entry in batch if entry.in_flight], outcome)

    def _take(self, flow: Flow, slots: int) -> list[Entry]:
        """Take the next ready entries of the flow, and drop entries that are no longer ready."""
        batch: list[Entry] = []
        room = min(max(QUANTUM, flow.tenant.batch), flow.cap - flow.in_flight, slots)
        ready, pace, is_ready = flow.ready, flow.pace, Phase.READY
        if pace is not None:
            room = min(room, pace.allows(self._clock.elapsed_ms()))
        while ready and len(batch) < room:
            entry = ready.popleft()
            if entry.phase is is_ready:
                batch.append(entry)
                if entry.event.repeat is not None and self._is_old(entry):
                    break
        if pace is not None:
            pace.take(len(batch))
        return batch

    def _is_old(self, entry: Entry) -> bool:
        """Whether the entry may have missed many occurrences."""
        event = entry.event
        return event.repeat is not None and event.due_at < self._clock.now() - _OLD_MS
