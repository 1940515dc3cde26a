"""The client for programs that await: `AsyncClient`.

A thin shell, like `blocking`: the same calls, sent over the pool of raw connections that deliveries use. Belongs to
the event loop in which its first call is made, and so to its process: after a fork it refuses to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from os import getpid
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from everbell.channels.http_client import HttpFailure, HttpPool, HttpRequest
from everbell.client import (
    batches,
    bulk_calls,
    calls,
    cluster_calls,
    export_calls,
    key_calls,
    pause_calls,
    queue_calls,
    recurrence_calls,
    tenant_calls,
)
from everbell.client.address import DEFAULT_URL, Address
from everbell.client.answers import Batch, EventView, Page, together
from everbell.client.call import (
    ANSWER_BYTES_MAX,
    ATTEMPTS_MAX,
    Backoff,
    Call,
    Lost,
    Persistence,
    Reply,
    conclude,
    doubling,
    in_doubt,
)
from everbell.client.methods import presented
from everbell.client.tls import client_tls
from everbell.entropy import SystemEntropy
from everbell.errors import EverbellError

P = ParamSpec("P")
T = TypeVar("T")


def _one(
    build: Callable[Concatenate[str, P], Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(build(self.tenant, *args, **kwargs))

    return presented(method, build)


def _walk(
    build: Callable[Concatenate[str, P], Call[Page]], name: str
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[EventView]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[EventView]:
        rest: Call[Page] | None = build(self.tenant, *args, **kwargs)
        while rest is not None:
            page = await self.run(rest)
            for event in page.events:
                yield event
            rest = page.rest

    return presented(method, build, name)


def _each(
    build: Callable[Concatenate[str, P], Iterator[Call[T] | T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        for part in build(self.tenant, *args, **kwargs):
            yield await self.run(part) if isinstance(part, Call) else part

    return presented(method, build)


def _many(
    build: Callable[Concatenate[str, P], Iterator[Call[Batch] | Batch]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Batch]]:
    each = _each(build)

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Batch:
        return together([batch async for batch in each(self, *args, **kwargs)])

    return presented(method, build, "schedule_many")


class AsyncClient:
    """A client of one tenant. Close it when done, or use it as an async context manager."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        tenant: str = "default",
        token: str | None = None,
        timeout_s: float = 10.0,
        *,
        ca: str | None = None,
        certificate: str | None = None,
        attempts_max: int = ATTEMPTS_MAX,
        backoff: Backoff | None = None,
    ) -> None:
        """`timeout_s` bounds each request, `attempts_max` how often what may be repeated is sent.

        For https, `ca` is a file of authorities to trust instead of the system's, and `certificate` one with this
        client's certificate and its private key, for servers that want one.
        """
        self._address = Address(url, token)
        self._tls = client_tls(ca, certificate)
        self.tenant = tenant
        self._timeout_s = timeout_s
        self._persistence = Persistence(backoff or doubling(0.1, 2.0, SystemEntropy().jitter), attempts_max)
        self._pool: HttpPool | None = None
        self._process = 0

    schedule = _one(calls.schedule)
    put = _one(calls.put)
    schedule_many = _many(batches.schedule_batches)
    schedule_batches = _each(batches.schedule_batches)
    get = _one(calls.get)
    page = _one(calls.page)
    list = _walk(calls.page, "list")
    change = _one(calls.change)
    reschedule = _one(calls.reschedule)
    cancel = _one(calls.cancel)
    cancel_matching = _one(bulk_calls.cancel_matching)
    cancel_page = _one(bulk_calls.cancel_page)
    reschedule_matching = _one(bulk_calls.reschedule_matching)
    reschedule_many = _one(bulk_calls.reschedule_many)
    export_page = _one(export_calls.export_page)
    look_at_key = _one(bulk_calls.look_at_key)
    drop_head = _one(bulk_calls.drop_head)
    forecast = _one(bulk_calls.forecast)
    deliver = _one(calls.deliver)
    try_out = _one(calls.try_out)
    dead = _walk(calls.dead, "dead")
    redrive = _one(bulk_calls.redrive)
    redrive_all = _one(bulk_calls.redrive_all)
    discard_dead = _one(bulk_calls.discard_dead)
    preview = _one(recurrence_calls.preview)
    preview_event = _one(recurrence_calls.preview_event)
    pause = _one(recurrence_calls.pause)
    resume = _one(recurrence_calls.resume)
    backfill = _one(recurrence_calls.backfill)
    health = _one(calls.health)
    metrics = _one(calls.metrics)
    cluster = _one(cluster_calls.cluster)
    drain = _one(cluster_calls.drain)
    undrain = _one(cluster_calls.undrain)
    forget = _one(cluster_calls.forget)
    set_strategy = _one(cluster_calls.set_strategy)
    back_up = _one(calls.back_up)
    keys = _one(key_calls.keys)
    create_key = _one(key_calls.create_key)
    revoke_key = _one(key_calls.revoke_key)
    tenants = _one(tenant_calls.tenants)
    policy = _one(tenant_calls.policy)
    set_policy = _one(tenant_calls.set_policy)
    delete_policy = _one(tenant_calls.delete_policy)
    pauses = _one(pause_calls.pauses)
    add_pause = _one(pause_calls.add_pause)
    end_pause = _one(pause_calls.end_pause)
    lease = _one(queue_calls.lease)
    ack = _one(queue_calls.ack)
    extend = _one(queue_calls.extend)
    fail = _one(queue_calls.fail)
    give_back = _one(queue_calls.give_back)

    async def run(self, call: Call[T]) -> T:
        """Make a call, again where that is safe, and give its result or raise what became of it."""
        attempt = 1
        while True:
            outcome = await self._exchange(call)
            pause_s = self._persistence.pause_s(call, attempt, outcome)
            if pause_s is None:
                doubt = in_doubt(call, attempt, outcome)
                return conclude(call, outcome, self._address.url) if doubt is None else await self.run(doubt)
            await asyncio.sleep(pause_s)
            attempt += 1

    async def close(self) -> None:
        """Close the connections. What is still under way raises `Unreachable`."""
        # In a child process the pool is the parent's: to close it would take its sockets out of the parent's loop.
        if self._pool is not None and self._process == getpid():
            pool, self._pool = self._pool, None
            await pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _exchange(self, call: Call[T]) -> Reply | Lost:
        pool = self._opened()
        address = self._address
        headers = "".join(f"{name}: {value}\r\n" for name, value in address.headers(call).items()).encode()
        request = HttpRequest(
            address.scheme, address.host, address.port, call.method, address.target(call), headers, call.body
        )
        try:
            reply = await pool.fetch(request, self._timeout_s + call.wait_s)
        except HttpFailure as failure:
            return Lost(failure.reason.partition("; whether")[0], failure.sent, final=failure.kind == "timeout")
        if reply.truncated:
            return Lost(f"its answer is larger than {ANSWER_BYTES_MAX >> 20} MiB", sent=True, final=True)
        return Reply(reply.status, reply.headers, reply.body)

    def _opened(self) -> HttpPool:
        if self._pool is None:
            self._pool = HttpPool(guard=None, response_bytes_max=ANSWER_BYTES_MAX, ssl_context=self._tls)
            self._process = getpid()
        elif self._process != getpid():
            # The loop of the parent would read the answers to what is sent here.
            raise EverbellError("this client was used before the process forked; make one of its own in each process")
        return self._pool
