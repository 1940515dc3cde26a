"""A worker as a process, as `everbell worker` runs it.

A process with several children, or with `reload`, handles no events itself: see `worker_fleet`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from everbell.client.app import App
from everbell.client.awaiting import AsyncClient
from everbell.client.worker import Worker
from everbell.client.worker_fleet import CHILD_VARIABLE, WorkerFleet

_log = logging.getLogger("everbell.worker")

STRANDED = 1
"""The exit code of a worker whose handlers did not end in time."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker on a command line."""

    concurrency: int = 16
    lease_s: float = 30.0
    grace_s: float = 30.0
    name: str | None = None
    queues: Collection[str] | None = None
    processes: int = 1
    reload: bool = False


def run_worker(
    load: Callable[[], App],
    connect: Callable[[], AsyncClient],
    options: WorkerOptions,
    report: Callable[[Worker], None] = lambda worker: None,
) -> int:
    """Run a worker until it is told to stop; returns the exit code. `report` is called after the last event."""
    child = os.environ.pop(CHILD_VARIABLE, None)
    if child is None and (options.processes > 1 or options.reload):
        return asyncio.run(_lead(options))
    parent: int | None = None
    if child is not None:
        number, _, pipe = child.partition(":")
        parent = int(pipe)
        options = replace(options, name=None if options.name is None else f"{options.name}-{number}")
    app = load()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        worker = runner.run(_work(app, connect, options, parent))
    report(worker)
    if worker.stranded:
        # Plain functions still run in threads, and threads cannot be stopped: exit without waiting for them.
        _log.warning("%d handlers did not end in time", worker.stranded)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STRANDED)
    return 0


async def _lead(options: WorkerOptions) -> int:
    return await WorkerFleet(options.processes, Path.cwd() if options.reload else None).run()


async def _work(app: App, connect: Callable[[], AsyncClient], options: WorkerOptions, parent: int | None) -> Worker:
    async with connect() as client:
        worker = Worker(
            app,
            client,
            options.concurrency,
            lease_s=options.lease_s,
            grace_s=options.grace_s,
            name=options.name,
            queues=options.queues,
        )
        if parent is not None:
            asyncio.get_running_loop().add_reader(parent, _orphaned, worker, parent)
        _log.info("pulling from %s for tenant %s: %s", client.url, client.tenant, ", ".join(worker.queues))
        await worker.run_until_signal()
        _log.info("handled %d events, %d failed", worker.handled, worker.failed)
    return worker


def _orphaned(worker: Worker, parent: int) -> None:
    """The parent never writes, so its pipe is readable only when the parent has ended."""
    asyncio.get_running_loop().remove_reader(parent)
    _log.warning("the parent process ended: stopping")
    worker.stop()
