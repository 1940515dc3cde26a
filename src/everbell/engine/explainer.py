"""Explains events: collects everything that can hold one up, at the moment of the request (`core/why.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from everbell.channels.queue import QueueChannel
from everbell.clock import Clock
from everbell.core.event import Event
from everbell.core.pause import Pause, pause_of_group
from everbell.core.request import Handler
from everbell.core.why import Ahead, Situation, Why, explain, status_ahead
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import Entry, Phase
from everbell.engine.flow import Flow
from everbell.engine.key_view import head_of_key
from everbell.engine.observer import QUEUE, STALLED_MS
from everbell.engine.ordering import Lanes
from everbell.engine.partition import Partition
from everbell.engine.pauses import Pauses
from everbell.engine.requests import Get
from everbell.engine.seen import Explained, Seen
from everbell.engine.view_requests import Explain
from everbell.engine.working_set import WorkingSet
from everbell.engine.writer import StoreWriter
from everbell.stores.port import Store


class Explainer:
    """Answers why an event is where it is."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        partitions: Sequence[Partition],
        memory: WorkingSet,
        lanes: Lanes,
        dispatcher: Dispatcher,
        writer: StoreWriter,
        pauses: Pauses,
        queues: QueueChannel,
        get: Callable[[Get], Awaitable[Seen]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._partitions = partitions
        self._memory = memory
        self._lanes = lanes
        self._dispatcher = dispatcher
        self._writer = writer
        self._pauses = pauses
        self._queues = queues
        self._get = get

    def handlers(self) -> tuple[Handler, ...]:
        """The request for an explanation."""
        return (Explain.by(self._explain),)

    async def _explain(self, request: Explain) -> Explained:
        ahead = None
        seen = await self._get(Get(request.tenant, request.id))
        if seen.live is not None and self._is_due(seen.live):
            ahead = await self._ahead(seen.live)
            # The event is read again: it may have moved on while the store was asked about its key.
            seen = await self._get(Get(request.tenant, request.id))
        return Explained(seen, None if seen.live is None else self._why(seen.live, ahead))

    def _is_due(self, event: Event) -> bool:
        is_owned = self._partitions[event.partition].is_open
        return is_owned and (event.state == "waiting" or event.run_at <= self._clock.now()) and event.state != "dead"

    async def _ahead(self, event: Event) -> Ahead | None:
        """The event that has to end before this one may start, if there is one."""
        if event.key is None:
            return None
        head = await head_of_key(self._store, self._lanes, self._memory, event.partition, event.tenant, event.key)
        if head is None or head.sequence == event.sequence:
            return None
        entry = self._memory.entries.get(head.sequence)
        return status_ahead(head, in_flight=entry is not None and entry.in_flight)

    def _why(self, event: Event, ahead: Ahead | None) -> Why:
        partition = self._partitions[event.partition]
        entry = self._memory.entries.get(event.sequence)
        flow = self._memory.flows.look_up(event) if entry is None else entry.flow
        trouble = self._writer.trouble
        breaker, is_queue = flow.breaker, flow.group.startswith(QUEUE)
        return explain(
            event,
            Situation(
                self._clock.now(),
                flow.group,
                partition.is_open,
                entry.started_at if entry is not None and entry.in_flight else None,
                event.attempt_count + 1,
                entry is not None and entry.phase is Phase.SETTLING,
                self._pause_of(event, flow),
                self._memory.flows.lacks_handler(flow.group),
                None if trouble is None else str(trouble[0]),
                ahead,
                self._is_left_in_store(event, entry, flow, partition),
                breaker.probe_at if breaker is not None and breaker.state == "open" else None,
                flow.resumes_at if flow.throttled else None,
                self._queues.contacts.silent_ms((event.tenant, event.to.partition(":")[2])) if is_queue else None,
                STALLED_MS,
                flow.in_flight,
                None if is_queue else flow.cap,
                flow.account.in_flight,
                flow.account.in_flight if self._dispatcher.slots_for(flow.account) <= 0 else None,
            ),
        )

    def _pause_of(self, event: Event, flow: Flow) -> Pause | None:
        on = self._pauses.on
        if (pause := pause_of_group(on, event.tenant, flow.group)) is not None:
            return pause
        keys = (pause for pause in on if pause.what == "key" and pause.tenant == event.tenant)
        return next((pause for pause in keys if pause.name == event.key), None)

    def _is_left_in_store(self, event: Event, entry: Entry | None, flow: Flow, partition: Partition) -> bool:
        if entry is not None or event.state != "scheduled":
            return False
        skips = partition.skips_of(event.tenant)
        is_over = any(flow.is_overflow and event.position >= skip.position for flow, skip in skips.items())
        return is_over or partition.skip_for(event, flow) is not None
