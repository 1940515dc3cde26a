"""Drafts that arrive in one iteration of the event loop are scheduled with one request per tenant.

A busy server reads dozens of requests in an iteration. Scheduled one by one, each would cost a task and a unit of work
in the engine, or a frame on the link, which is more than decoding and checking it. Nothing waits longer for this: the
request is sent before the loop looks for input again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from everbell.core.spec import Draft
from everbell.engine.requests import Schedule
from everbell.engine.seen import DraftResult
from everbell.errors import OutcomeUnknown

T = TypeVar("T")

# A larger batch is sent in parts, so that the engine can store one part while it reads the next. The engine stores each
# part as one unit: up to this many drafts of one request are stored or refused together.
BATCH_DRAFTS_MAX = 1_000

Results = Sequence[DraftResult]
# Makes the answer of one caller. It gets the tenant, the drafts and the results of the whole batch, and the range of
# the caller's drafts. It runs for every single event that comes over HTTP, so nothing is sliced or wrapped for it.
OnFinished = Callable[[str, Sequence[Draft], Results, int, int], T]


class _Batch(Generic[T]):
    """Drafts of one tenant that are scheduled together, and their callers."""

    __slots__ = ("callers", "drafts", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.drafts: list[Draft] = []
        # The range of each caller's drafts, and the future of its answer.
        self.callers: list[tuple[int, int, asyncio.Future[T]]] = []


class TurnBatch(Generic[T]):
    """Batches drafts in front of an engine, or in front of the link to an engine."""

    def __init__(
        self,
        schedule: Callable[[Schedule], Awaitable[Results]],
        finish: OnFinished[T],
        fail: Callable[[BaseException], T] | None = None,
    ) -> None:
        """`fail` makes the answer when there are no results; without it, the callers' futures raise the error."""
        self._schedule = schedule
        self._finish = finish
        self._fail = fail
        self._batches: dict[str, _Batch[T]] = {}
        # The loop has only weak references to tasks.
        self._in_flight: set[asyncio.Future[Results]] = set()

    def add(self, tenant: str, drafts: Sequence[Draft]) -> asyncio.Future[T]:
        """Schedule drafts. The drafts of one call are in one batch. The future has the result of `finish`."""
        loop = asyncio.get_running_loop()
        batch = self._batches.get(tenant)
        start = 0 if batch is None else len(batch.drafts)
        end = start + len(drafts)
        if batch is not None and end > BATCH_DRAFTS_MAX:
            self._send(self._batches.pop(tenant))
            start, end, batch = 0, len(drafts), None
        if batch is None:
            if not self._batches:
                loop.call_soon(self._send_all)
            batch = self._batches[tenant] = _Batch(tenant)
        answer: asyncio.Future[T] = loop.create_future()
        batch.drafts += drafts
        batch.callers.append((start, end, answer))
        return answer

    def _send_all(self) -> None:
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            self._send(batch)

    def _send(self, batch: _Batch[T]) -> None:
        try:
            results = asyncio.ensure_future(self._schedule(Schedule(batch.tenant, batch.drafts)))
        except Exception as error:
            self._settle_without(batch, error)
            return
        self._in_flight.add(results)
        results.add_done_callback(partial(self._settle, batch))

    def _settle(self, batch: _Batch[T], done: asyncio.Future[Results]) -> None:
        self._in_flight.discard(done)
        if done.cancelled():
            unknown = OutcomeUnknown("Everbell stopped meanwhile; with an id of your own, ask again")
            self._settle_without(batch, unknown)
        elif (error := done.exception()) is not None:
            self._settle_without(batch, error)
        else:
            finish, tenant, drafts, results = self._finish, batch.tenant, batch.drafts, done.result()
            for start, end, answer in batch.callers:
                if answer.done():  # The caller was cancelled.
                    continue
                try:
                    answer.set_result(finish(tenant, drafts, results, start, end))
                except Exception as fault:  # The callers after this one need their answers too.
                    answer.set_exception(fault)

    def _settle_without(self, batch: _Batch[T], error: BaseException) -> None:
        for _, _, answer in batch.callers:
            if answer.done():
                continue
            if self._fail is None:
                answer.set_exception(error)
            else:
                answer.set_result(self._fail(error))
