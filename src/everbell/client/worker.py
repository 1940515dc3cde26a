"""A worker: pulls due events of an app's queues from a server and runs their handlers, until it is told to stop.

Each queue has its own concurrency, so a slow queue delays no other. The worker retries while the server restarts or
cannot be reached. An error that retries cannot fix (a wrong token, a wrong tenant) stops it.
"""

from __future__ import annotations

import asyncio
import signal

from everbell.client.app import App
from everbell.client.call import RetryPause, doubling
from everbell.client.puller import LeasePace, Puller
from everbell.client.settler import LeasingClient, log
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
    ) -> None:
        """`lease_s`: how long a lease lasts unless extended; `grace_s`: how long handlers may run when stopping."""
        if not app.handlers:
            raise InvalidInput('the app has no handlers: add one with @app.on("queue-name")')
        if concurrency < 1:
            raise InvalidInput("must be at least 1", "concurrency")
        backoff = backoff or doubling(0.2, 5.0, SystemEntropy().jitter)
        pace = LeasePace(backoff, concurrency, lease_s, wait_s, grace_s)
        self._pullers = [Puller(queue, handler, client, pace) for queue, handler in app.handlers.items()]
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
