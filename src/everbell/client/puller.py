"""One queue of a worker: leases due events, runs the handler on them, keeps the leases alive meanwhile.

Rules:
- A worker holds no more events than handlers may run at a time, so none waits here while another worker is idle.
- A runner takes one event after the other, and starts the next runner only before a handler that may wait: a handler
  that does not wait costs no task of its own.
- Every lease is extended after each third of its duration, until its handler ends. If the server does not know a lease
  any more, another worker may have it: its event is not begun, and if it was begun, it may run twice.
- A stopping worker leases no new events. Events that were not begun are given back at once. Running handlers get the
  grace period, and the events of handlers that still run after it are given back, too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from everbell.channels.handler import HandlerFunction, call_in_thread, failure_of
from everbell.channels.queue import LEASE_EVENTS_MAX, Lease
from everbell.client.call import RetryPause
from everbell.client.queue_calls import Failure
from everbell.client.settler import LeasingClient, Settler, is_final, log
from everbell.client.task import TaskQueue
from everbell.core.occurrence import Occurrence
from everbell.core.queue_view import WorkerInfo
from everbell.core.retry import Outcome
from everbell.errors import EverbellError

SETTLE_S = 5.0
"""How long a stopping worker tries to report outcomes after the last handler ended."""


@dataclass(frozen=True, slots=True)
class LeasePace:
    """The concurrency of each queue, and the times of a worker."""

    backoff: RetryPause
    concurrency: int = 16
    lease_s: float = 30.0
    wait_s: float = 20.0
    grace_s: float = 30.0
    worker: WorkerInfo | None = None
    """What the worker tells the server about itself."""


class Puller:
    """Runs the handler of one queue. `run` ends after `stop`, or raises an error that retries cannot fix."""

    def __init__(self, queue: str, handler: HandlerFunction, client: LeasingClient, pace: LeasePace) -> None:
        self.queue = queue
        self._handler = handler
        self._client = client
        self._pace = pace
        self._settler = Settler(client, queue, pace.backoff)
        self._pending: deque[Lease] = deque()
        self._held: dict[str, Lease] = {}
        self._lost: set[str] = set()
        self._runners: set[asyncio.Task[None]] = set()
        self._starting = False
        self._room = asyncio.Event()
        self._room.set()
        self._hurry = asyncio.Event()
        self._stopped = False
        self._poller: asyncio.Task[None] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.handled = 0
        self.failed = 0
        self.stranded = 0
        """How many plain functions still run in threads. A thread cannot be stopped."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._poller = loop.create_task(self._poll())
        extender = loop.create_task(self._extend())
        if self._stopped:
            self._poller.cancel()
        try:
            await asyncio.wait((self._poller,))
            await self._wind_down()
        finally:
            rest = (self._poller, extender, *self._runners)
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)
            await self._settler.drain(0)
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
        if not self._poller.cancelled():
            self._poller.result()

    def stop(self, *, hurry: bool = False) -> None:
        """Lease no more events and let handlers finish; in a hurry, do not wait for them."""
        self._stopped = True
        if self._poller is not None:
            self._poller.cancel()
        if hurry:
            self._hurry.set()

    async def _poll(self) -> None:
        failures = 0
        while True:
            await self._room.wait()
            room = min(self._pace.concurrency - len(self._held), LEASE_EVENTS_MAX)
            try:
                leases = await self._client.lease(
                    self.queue,
                    limit=room,
                    wait=self._pace.wait_s,
                    lease=self._pace.lease_s,
                    worker=self._pace.worker,
                )
            except EverbellError as error:
                if is_final(error):
                    raise
                failures += 1
                log.warning("queue %s: nothing can be leased, trying again: %s", self.queue, error)
                await asyncio.sleep(self._pace.backoff(failures))
            else:
                if failures:
                    log.info("queue %s: the server is back", self.queue)
                failures = 0
                self._take(leases)

    def _take(self, leases: list[Lease]) -> None:
        self._held.update((lease.token, lease) for lease in leases)
        self._pending.extend(leases)
        if len(self._held) >= self._pace.concurrency:
            self._room.clear()
        self._start_runner()

    def _start_runner(self) -> None:
        """Start a runner for the first pending event, unless one is starting already."""
        if self._pending and not self._starting and not self._stopped:
            self._starting = True
            runner = asyncio.get_running_loop().create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        self._starting = False
        while self._pending and not self._stopped:
            lease = self._pending.popleft()
            self._start_runner()
            if lease.token in self._held:
                await self._handle(lease)

    async def _handle(self, lease: Lease) -> None:
        try:
            await self._call(lease.occurrence)
        except asyncio.CancelledError:
            runner = asyncio.current_task()
            if runner is None or not runner.cancelling():
                self._fail(lease, Outcome("failed", "the handler cancelled itself"))
                return
            self._give_back(lease)
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            log.debug("queue %s: the handler of %s failed", self.queue, lease.occurrence.id, exc_info=error)
            self._fail(lease, failure_of(error))
        else:
            self.handled += 1
            self._release(lease)
            self._settler.ack(lease.token)

    async def _call(self, occurrence: Occurrence) -> None:
        handler = self._handler.of(occurrence) if isinstance(self._handler, TaskQueue) else self._handler
        on_loop = inspect.iscoroutinefunction(handler)
        result = handler(occurrence) if on_loop else await self._in_thread(handler, occurrence)
        if inspect.isawaitable(result):
            await result

    async def _in_thread(self, handler: HandlerFunction, occurrence: Occurrence) -> object:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._pace.concurrency, f"everbell-{self.queue}")
        future = self._threads.submit(call_in_thread, handler, occurrence)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.stranded += future.running()
            raise

    def _fail(self, lease: Lease, outcome: Outcome) -> None:
        self.failed += 1
        log.warning("queue %s: %s was not handled: %s", self.queue, lease.occurrence.id, outcome.reason)
        self._release(lease)
        after_s = None if outcome.retry_after_ms is None else outcome.retry_after_ms / 1_000
        permanent = outcome.result == "refused"
        self._settler.fail(Failure(lease.token, outcome.reason, after_s, permanent=permanent))

    def _give_back(self, lease: Lease) -> None:
        self._release(lease)
        self._settler.fail(Failure(lease.token, "the worker stopped before this was done", retry_after=0))

    def _release(self, lease: Lease) -> None:
        self._held.pop(lease.token, None)
        self._lost.discard(lease.token)
        self._room.set()

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._pace.lease_s / 3)
            tokens = [token for token in self._held if token not in self._lost]
            for start in range(0, len(tokens), LEASE_EVENTS_MAX):
                try:
                    settled = await self._client.extend(
                        self.queue,
                        tokens[start : start + LEASE_EVENTS_MAX],
                        lease=self._pace.lease_s,
                        worker=self._pace.worker,
                    )
                except EverbellError as error:
                    log.warning("queue %s: leases could not be extended: %s", self.queue, error)
                else:
                    self._lose(settled.lost)

    def _lose(self, tokens: Sequence[str]) -> None:
        for token in self._held.keys() & tokens:
            lease = self._held[token]
            log.warning("queue %s: the lease of %s was lost; it may run twice", self.queue, lease.occurrence.id)
            self._lost.add(token)
            if lease in self._pending:
                self._release(lease)

    async def _wind_down(self) -> None:
        while self._pending:
            lease = self._pending.popleft()
            if lease.token in self._held:
                self._give_back(lease)
        hurry = asyncio.get_running_loop().create_task(self._hurry.wait())
        all_ended = asyncio.get_running_loop().create_task(_ended(self._runners))
        await asyncio.wait((hurry, all_ended), timeout=self._pace.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (hurry, all_ended, *self._runners):
            task.cancel()
        await asyncio.wait((hurry, all_ended, *self._runners))
        if not await self._settler.drain(SETTLE_S):
            log.warning("queue %s: some outcomes were not reported in time; their events are leased again", self.queue)


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    while tasks:
        await asyncio.wait(tasks)
