"""The client for programs that wait: `Client`.

A thin shell: `calls` knows what to send and how to read the answer, `call` knows what may be repeated. Safe to share
between threads, and across a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

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
from everbell.client.call import ATTEMPTS_MAX, Backoff, Call, Lost, Persistence, Reply, conclude, doubling, in_doubt
from everbell.client.connections import Connections
from everbell.client.methods import presented
from everbell.client.tls import client_tls
from everbell.entropy import SystemEntropy

P = ParamSpec("P")
T = TypeVar("T")


def _one(build: Callable[Concatenate[str, P], Call[T]]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(build(self.tenant, *args, **kwargs))

    return presented(method, build)


def _walk(
    build: Callable[Concatenate[str, P], Call[Page]], name: str
) -> Callable[Concatenate[Client, P], Iterator[EventView]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[EventView]:
        rest: Call[Page] | None = build(self.tenant, *args, **kwargs)
        while rest is not None:
            page = self.run(rest)
            yield from page.events
            rest = page.rest

    return presented(method, build, name)


def _each(
    build: Callable[Concatenate[str, P], Iterator[Call[T] | T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        for part in build(self.tenant, *args, **kwargs):
            yield self.run(part) if isinstance(part, Call) else part

    return presented(method, build)


def _many(
    build: Callable[Concatenate[str, P], Iterator[Call[Batch] | Batch]],
) -> Callable[Concatenate[Client, P], Batch]:
    each = _each(build)

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Batch:
        return together(list(each(self, *args, **kwargs)))

    return presented(method, build, "schedule_many")


class Client:
    """A client of one tenant. Close it when done, or use it as a context manager."""

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
        """`timeout_s` bounds each wait for the server, `attempts_max` how often what may be repeated is sent.

        For https, `ca` is a file of authorities to trust instead of the system's, and `certificate` one with this
        client's certificate and its private key, for servers that want one.
        """
        self._address = Address(url, token)
        self._tls = client_tls(ca, certificate)
        self.tenant = tenant
        self._timeout_s = timeout_s
        self._persistence = Persistence(backoff or doubling(0.1, 2.0, SystemEntropy().jitter), attempts_max)
        self._connections = Connections(self._address, self._tls)

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

    def run(self, call: Call[T]) -> T:
        """Make a call, again where that is safe, and give its result or raise what became of it."""
        attempt = 1
        while True:
            outcome = self._exchange(call)
            pause_s = self._persistence.pause_s(call, attempt, outcome)
            if pause_s is None or self._connections.wait_closed(pause_s):
                doubt = in_doubt(call, attempt, outcome)
                return conclude(call, outcome, self._address.url) if doubt is None else self.run(doubt)
            attempt += 1

    def close(self) -> None:
        """Close the connections, and give up whatever is waiting to be repeated."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, call: Call[T]) -> Reply | Lost:
        return self._connections.exchange(call, self._timeout_s + call.wait_s)
