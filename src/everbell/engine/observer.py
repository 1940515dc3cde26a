"""What a node knows about its queues and targets at this moment, for users, health and metrics."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from everbell.channels.queue import QueueChannel
from everbell.clock import Clock
from everbell.core.event import position_at
from everbell.core.pause import PauseInForce, pause_of_group
from everbell.core.queue_view import QueuesView, QueueView, RecentAttempts, WorkerView
from everbell.core.request import Handler
from everbell.core.target_view import BreakerView, ErrorView, RateView, TargetsView, TargetView
from everbell.core.time import MINUTE_MS, format_instant
from everbell.engine.agenda import NEVER
from everbell.engine.entry import Phase
from everbell.engine.flow import Flow
from everbell.engine.history import Gauges, History, Past
from everbell.engine.meter import Meter
from everbell.engine.notices import Notices
from everbell.engine.pauses import Pauses
from everbell.engine.tally import DELIVERED, FAILED, TargetTally, durations_in, percentile
from everbell.engine.view_requests import GetPast, GetQueues, GetTargets, NoteWorker
from everbell.engine.workers import Workers
from everbell.engine.working_set import WorkingSet
from everbell.errors import StoreError
from everbell.stores.port import Store

QUEUE = "queue:"
# Among the first entries of a flow, one that was cancelled may still have its place.
_LOOKED_AT = 8
STALLED_MS = MINUTE_MS
"""How long events of a queue may wait without a call of a worker before the queue counts as stalled."""


class Observer:
    """Answers requests about the queues and targets of this node."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        memory: WorkingSet,
        queues: QueueChannel,
        pauses: Pauses,
        meter: Meter,
        notices: Notices,
    ) -> None:
        self._store = store
        self._clock = clock
        self._memory = memory
        self._queues = queues
        self._pauses = pauses
        self._tallies = meter.tallies
        self._workers = Workers(clock)
        self._stalled: set[tuple[str, str]] = set()
        self._notices = notices
        self.history = History(clock, meter.tallies, self._gauges)

    def handlers(self) -> tuple[Handler, ...]:
        """The requests about queues and targets."""
        return (
            NoteWorker.by(self._note_worker),
            GetQueues.by(self._get_queues),
            GetTargets.by(self._get_targets),
            GetPast.by(self._get_past),
        )

    def sample(self) -> None:
        """Close the current span of the history, and drop deliveries that need no worker any more."""
        entries = self._memory.entries
        self._queues.prune(lambda delivery: delivery.event.sequence in entries)
        self._tell_stalled()
        self._notices.flush()
        self.history.sample()

    def stalled(self) -> list[tuple[str, str]]:
        """The queues with due events for which no worker has called for a minute, as (tenant, name)."""
        contacts = self._queues.contacts
        return [queue for queue in self._queues.waiting() if contacts.ignored_ms(queue) >= STALLED_MS]

    def waiting_queues(self) -> list[tuple[str, str]]:
        """The queues with due events that wait for a worker, as (tenant, name)."""
        return self._queues.waiting()

    def _tell_stalled(self) -> None:
        before, self._stalled = self._stalled, set(self.stalled())
        for tenant, name in sorted(self._stalled - before):
            message = f"tenant {tenant}: the queue {name} has due events, and no worker has called for a minute"
            self._notices.tell("queues without a worker", f"{tenant} {name}", message)

    def oldest_at(self) -> int:
        """The time of the oldest event that waits for a slot of its target or for a worker. Pauses do not count."""
        waiting = (self._queues.oldest_at(tenant, name) for tenant, name in self._queues.waiting())
        return min(self._memory.oldest_at(), min((at for at in waiting if at is not None), default=NEVER))

    def waiting_of(self, flow: Flow) -> tuple[int, int | None]:
        """The number of the flow's due events in memory that have not started, and how long the oldest has been due.

        The oldest may be in the store only.
        """
        count, first_at = len(flow.ready), None
        times = [position_at(skip.position) for skip in flow.skips.values()]
        times += [entry.event.run_at for entry in islice(flow.ready, _LOOKED_AT) if entry.phase is Phase.READY]
        if flow.group.startswith(QUEUE):
            queue = flow.group.removeprefix(QUEUE)
            count += self._queues.depth(flow.tenant.name, queue)
            first_at = self._queues.oldest_at(flow.tenant.name, queue)
        if first_at is not None:
            times.append(first_at)
        now = self._clock.now()
        return count, max((now - at for at in times if at <= now), default=None)

    async def _note_worker(self, request: NoteWorker) -> None:
        self._workers.note(request.tenant, request.queue, request.worker)

    async def _get_queues(self, request: GetQueues) -> QueuesView:
        tenant = request.tenant
        workers = self._workers.of(tenant)
        flows = {flow.group.removeprefix(QUEUE): flow for flow in self._flows(tenant) if flow.group.startswith(QUEUE)}
        names = flows.keys() | workers.keys() | self._queues.contacts.known(tenant)
        return QueuesView(
            tuple(self._queue_view(tenant, name, flows.get(name), workers.get(name, [])) for name in sorted(names))
        )

    def _queue_view(self, tenant: str, name: str, flow: Flow | None, workers: list[WorkerView]) -> QueueView:
        waiting, oldest_ms = (0, None) if flow is None else self.waiting_of(flow)
        contacts = self._queues.contacts
        silent_ms = contacts.silent_ms((tenant, name))
        now = self._clock.now()
        return QueueView(
            name,
            waiting,
            0 if flow is None else flow.in_flight,
            _recent(self._tallies.find(tenant, QUEUE + name)),
            tuple(workers),
            flow is not None and bool(flow.skips),
            oldest_ms,
            None if silent_ms is None else format_instant(now - silent_ms),
            contacts.ignored_ms((tenant, name)) >= STALLED_MS,
            self._pause_of(tenant, QUEUE + name),
        )

    async def _get_targets(self, request: GetTargets) -> TargetsView:
        return TargetsView(tuple(map(self._target_view, self._flows(request.tenant))))

    def _target_view(self, flow: Flow) -> TargetView:
        tenant = flow.tenant
        waiting, oldest_ms = self.waiting_of(flow)
        tally = self._tallies.find(tenant.name, flow.group)
        error = None if tally is None else tally.last_error
        return TargetView(
            flow.group,
            waiting,
            flow.in_flight,
            _recent(tally),
            bool(flow.skips),
            oldest_ms,
            None if flow.channel.holds else flow.full_cap,
            _breaker_view(flow),
            _rate_view(flow),
            self._pause_of(tenant.name, flow.group),
            None if error is None else ErrorView(format_instant(error.at), error.event, error.reason, error.code),
        )

    async def _get_past(self, request: GetPast) -> Past:
        # A store that is away answers nothing. The figures of the last minutes matter most then.
        with suppress(StoreError):
            self.history.counts = await self._store.counts()
        return self.history.past(request.tenant, request.span)

    def _gauges(self) -> dict[str, Gauges]:
        found: dict[str, Gauges] = {}
        for flow in self._memory.flows.all():
            waiting, oldest_ms = self.waiting_of(flow)
            if waiting or flow.in_flight or oldest_ms is not None:
                gauges = Gauges(waiting, flow.in_flight, 0 if flow.paused else oldest_ms or 0)
                found[flow.tenant.name] = found.get(flow.tenant.name, Gauges()).plus(gauges)
        return found

    def _flows(self, tenant: str) -> list[Flow]:
        flows = self._memory.flows.all()
        return [flow for flow in flows if flow.tenant.name == tenant and not flow.is_overflow]

    def _pause_of(self, tenant: str, group: str) -> PauseInForce | None:
        pause = pause_of_group(self._pauses.on, tenant, group)
        return None if pause is None else PauseInForce.of(pause)


def _recent(tally: TargetTally | None) -> RecentAttempts:
    if tally is None:
        return RecentAttempts()
    counts = tally.last_minute()
    took = durations_in(counts)
    return RecentAttempts(
        counts[DELIVERED], counts[FAILED], percentile(took, 0.5), percentile(took, 0.9), percentile(took, 0.99)
    )


def _breaker_view(flow: Flow) -> BreakerView | None:
    breaker = flow.breaker
    if breaker is None:
        return None
    until = format_instant(breaker.probe_at) if breaker.state == "open" else None
    return BreakerView(breaker.state, breaker.failures, until)


def _rate_view(flow: Flow) -> RateView | None:
    if flow.pace is None:
        return None
    return RateView(flow.pace.rate, format_instant(flow.resumes_at) if flow.throttled else None)
