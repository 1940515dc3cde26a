"""Names to addresses, for many tenants: a lookup may take seconds, and only a few run at a time.

- Tenants take turns. A tenant may run as many lookups as twice the free places, so it never has all of them, however
  many names without an answer it sends to.
- An answer is kept for `FOUND_S`, a failure for `NOT_FOUND_S`. So a name that does not resolve costs one lookup every
  few seconds. The address guard checks every address again when a connection is made.
- Connections that are made at the same time share one lookup. A lookup that no connection waits for is not begun.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from everbell.http.client_message import HttpFailure

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host, best first; raises OSError when it has none."""

LOOKUPS_MAX = 32
FOUND_S = 30.0
NOT_FOUND_S = 5.0
_KEPT_MAX = 10_000

# The loop's own threads are only four, and a name server that does not answer holds one for half a minute.
_threads = ThreadPoolExecutor(LOOKUPS_MAX, "everbell-resolve")


async def resolve_by_system(host: str, port: int) -> list[str]:
    """The addresses that the system's resolver gives."""

    def ask() -> list[str]:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(answer[4][0]) for answer in answers))

    return await asyncio.get_running_loop().run_in_executor(_threads, ask)


class _Lookup:
    """One name that is looked up, or that waits for its turn."""

    __slots__ = ("host", "port", "result", "task", "tenant", "waiting")

    def __init__(self, host: str, port: int, tenant: str) -> None:
        self.host = host
        self.port = port
        self.tenant = tenant
        self.result: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.waiting = 0


class Resolver:
    """Looks names up, a few at a time. `now` is a clock of elapsed seconds."""

    def __init__(self, resolve: Resolve, now: Callable[[], float], lookups_max: int = LOOKUPS_MAX) -> None:
        self._resolve = resolve
        self._now = now
        self._free = lookups_max
        self._lookups: dict[str, _Lookup] = {}
        self._queues: dict[str, deque[_Lookup]] = {}  # By tenant; the next tenant to have a turn first.
        self._running: dict[str, int] = {}
        self._kept: OrderedDict[str, tuple[float, Sequence[str] | HttpFailure]] = OrderedDict()

    async def addresses(self, host: str, port: int, tenant: str) -> Sequence[str]:
        """The addresses of a name. Raises `HttpFailure`."""
        kept = self._kept.get(host)
        if kept is not None and self._now() < kept[0]:
            if isinstance(kept[1], HttpFailure):
                raise HttpFailure(kept[1].kind, kept[1].reason)
            return kept[1]
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = _Lookup(host, port, tenant)
            self._queues.setdefault(tenant, deque()).append(lookup)
        lookup.waiting += 1
        try:
            self._begin_more()
            return await asyncio.shield(lookup.result)
        finally:
            lookup.waiting -= 1

    def is_waiting(self, host: str) -> bool:
        """Whether the name waits for its turn, and has not been looked up yet."""
        lookup = self._lookups.get(host)
        return lookup is not None and lookup.task is None

    def _begin_more(self) -> None:
        """Give turns while a tenant has a name that waits and may have another place."""
        for tenant in list(self._queues):
            queue = self._queues.pop(tenant)
            while queue and queue[0].waiting == 0:
                lookup = queue.popleft()
                del self._lookups[lookup.host]
            if queue and self._running.get(tenant, 0) < 2 * self._free:
                self._begin(queue.popleft())
            if queue:
                self._queues[tenant] = queue  # Behind all others.

    def _begin(self, lookup: _Lookup) -> None:
        self._free -= 1
        self._running[lookup.tenant] = self._running.get(lookup.tenant, 0) + 1
        lookup.task = asyncio.get_running_loop().create_task(self._look_up(lookup))

    async def _look_up(self, lookup: _Lookup) -> None:
        found: Sequence[str] | HttpFailure
        try:
            found = await self._resolve(lookup.host, lookup.port)
            if not found:
                found = HttpFailure("resolve", f"the host {lookup.host} has no address")
        except Exception as error:
            explanation = getattr(error, "strerror", None) or str(error)
            found = HttpFailure("resolve", f"the host {lookup.host} cannot be resolved: {explanation}")
        except asyncio.CancelledError:
            lookup.result.cancel()
            raise
        finally:
            self._ended(lookup)
        self._keep(lookup.host, found)
        if isinstance(found, HttpFailure):
            lookup.result.set_exception(found)
            lookup.result.exception()  # If no connection waits any more, the failure is not worth a log line.
        else:
            lookup.result.set_result(found)

    def _ended(self, lookup: _Lookup) -> None:
        del self._lookups[lookup.host]
        self._free += 1
        self._running[lookup.tenant] -= 1
        if not self._running[lookup.tenant]:
            del self._running[lookup.tenant]
        self._begin_more()

    def _keep(self, host: str, found: Sequence[str] | HttpFailure) -> None:
        lasts_s = NOT_FOUND_S if isinstance(found, HttpFailure) else FOUND_S
        self._kept[host] = (self._now() + lasts_s, found)
        self._kept.move_to_end(host)
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
