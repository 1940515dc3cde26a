"""A worker: pulls due events of an app's queues from a server and runs their handlers, until it is told to stop.

Each queue has its own concurrency, so a slow queue delays no other. The worker retries while the server restarts or
cannot be reached. An error that retries cannot fix (a wrong token, a wrong tenant) stops it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection
from importlib.metadata import version
from socket import gethostname

from everbell.client.app import App
from everbell.client.call import RetryPause, doubling
from everbell.client.puller import LeasePace, Puller
from everbell.client.settler import LeasingClient, log
from everbell.core.queue_view import WORKER_QUEUES_MAX, WORKER_TEXT_MAX, WorkerInfo
from everbell.entropy import SystemEntropy
from everbell.errors import InvalidInput


class Worker:
    """Runs an app. `concurrency` is how many handlers of each queue run at a time."""

    def __init__(
        self,
        app: App,
        client: LeasingClient,
        concurrency: int = 16,
        *,
        lease_s: float = 30.0,
        wait_s: float = 20.0,
        grace_s: float = 30.0,
        backoff: RetryPause | None = None,
        name: str | None = None,
        queues: Collection[str] | None = None,
    ) -> None:
        """`lease_s`: how long a lease lasts unless extended; `grace_s`: how long handlers may run when stopping.

        `name` tells this worker from others in the list of the server's queues; without one it is made from the host
        and the process. `queues` are the queues of the app that this worker pulls from; without it, all.
        """
        if not app.handlers:
            raise InvalidInput('the app has no handlers: add one with @app.on("queue-name")')
        if concurrency < 1:
            raise InvalidInput("must be at least 1", "concurrency")
        if name is not None and not 1 <= len(name) <= WORKER_TEXT_MAX:
            raise InvalidInput(f"has 1 to {WORKER_TEXT_MAX} characters", "name")
        backoff = backoff or doubling(0.2, 5.0, SystemEntropy().jitter)
        unknown = sorted(set(queues or ()) - app.handlers.keys())
        if unknown:
            known = ", ".join(app.handlers)
            raise InvalidInput(
                f"the app has no handler for {', '.join(unknown)}; it has handlers for {known}", "queues"
            )
        self.queues = tuple(queue for queue in app.handlers if queues is None or queue in queues)
        """The queues that this worker pulls from."""
        host = gethostname()
        self.name = name or f"{host}-{os.getpid()}"
        told = WorkerInfo(self.name, host[:WORKER_TEXT_MAX], version("everbell"), self.queues[:WORKER_QUEUES_MAX])
        pace = LeasePace(backoff, concurrency, lease_s, wait_s, grace_s, told)
        self._pullers = [Puller(queue, app.handlers[queue], client, pace) for queue in self.queues]
        self._stopping = False

    @property
    def handled(self) -> int:
        """How many events were handled."""
        return sum(puller.handled for puller in self._pullers)

    @property
    def failed(self) -> int:
        """How many events failed."""
        return sum(puller.failed for puller in self._pullers)

    @property
    def stranded(self) -> int:
        """How many handlers still run in threads after the end; a thread cannot be stopped."""
        return sum(puller.stranded for puller in self._pullers)

    async def run(self) -> None:
        """Pull and handle events until `stop`. Raises errors that retries cannot fix, after handlers ended."""
        tasks = [asyncio.get_running_loop().create_task(puller.run()) for puller in self._pullers]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def run_until_signal(self) -> None:
        """Like `run`, and stop on SIGTERM or SIGINT. A second signal does not wait for running handlers."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            await self.run()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self, *, hurry: bool = False) -> None:
        """Lease no more events, let handlers finish within `grace_s`, then release the rest; in a hurry, now.

        Returns at once; `run` returns when that is done.
        """
        self._stopping = True
        for puller in self._pullers:
            puller.stop(hurry=hurry)

    def _on_signal(self) -> None:
        if self._stopping:
            log.info("stopping now")
        else:
            log.info("stopping: handlers that are running may finish; once more to stop at once")
        self.stop(hurry=self._stopping)
