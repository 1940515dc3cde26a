"""Leases in ZooKeeper: nodes that live as long as the session of their holder.

- Each lease has its own session with a time-out that follows from the lease's. The servers expire sessions by their
  own monotonic clocks. They may learn up to half a tick late that a session was in use, so the time-out is a third
  longer than the lease: no lease ends too soon, and that of a killed holder ends that much later. (The servers limit
  time-outs by `maxSessionTimeout`, 40 s by default.)
- The driver keeps a session alive even if our loop is stuck. So a timer in a thread ends the session when the lease is
  over: a lease lasts only as long as it is renewed.
- Renewing is a round trip in that session, which checks that the node exists, or creates it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from math import inf
from operator import methodcaller as call
from typing import Any
from urllib.parse import quote

from everbell.errors import LogUnavailable
from everbell.logs.leases import until_ended
from everbell.logs.zookeeper_session import Session

_TRIES = 5
_LOOK_S = 5.0  # How often to poll in spite of watches.


class _HeldLease:
    """A lease that this process holds."""

    def __init__(self, session: Session, path: str, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        """The longest time that the lease can be renewed for."""
        self.is_over = False
        self._session = session
        self._path = path
        self._timer: threading.Timer | None = None

    async def confirm(self) -> None:
        """Make sure that the node exists and belongs to our session."""
        for _ in range(_TRIES):
            [stat] = await self._session.ask(call("exists_async", self._path))
            if stat is None:
                await self._session.ask(call("create_async", self._path, b"", ephemeral=True))
            elif stat.ephemeralOwner == self._session.id:
                return
            else:
                await self._session.ask(self._replace)
        raise LogUnavailable("the lease could not be renewed: another process renews it at the same time; trying again")

    def _replace(self, client: Any) -> Any:
        """Replace the node in one transaction, so that no watcher sees the lease end."""
        change = client.transaction()
        change.delete(self._path)
        change.create(self._path, b"", ephemeral=True)
        return change.commit_async()

    def keep(self, ttl_ms: int) -> None:
        """End the lease after `ttl_ms`, unless this is called again before."""
        self._stop_timer()
        self._timer = threading.Timer(ttl_ms / 1_000, self._run_out)
        self._timer.daemon = True
        self._timer.start()

    async def end(self) -> None:
        self._stop_timer()
        self.is_over = True
        await self._session.end()

    def leave(self) -> None:
        """End the session without waiting: a renewal is urgent, and the server may be away."""
        self._stop_timer()
        self.is_over = True
        self._session.end_soon()

    def _run_out(self) -> None:
        self.is_over = True
        self._session.end_now()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class ZookeeperLeases:
    """Leases under `folder`. `session` is the log's; `begin` makes another one with a time-out in seconds."""

    def __init__(self, session: Session, folder: str, begin: Callable[[float], Session]) -> None:
        self._session = session
        self._folder = folder
        self._begin = begin
        self._held: dict[str, _HeldLease] = {}
        self._turn = asyncio.Lock()

    async def renew(self, member: str, ttl_ms: int) -> None:
        async with self._turn:
            held = self._held.get(member)
            if held is None or held.is_over or held.ttl_ms < ttl_ms:
                held = await self._replace(member, ttl_ms)
            else:
                await held.confirm()
            held.keep(ttl_ms)

    async def _replace(self, member: str, ttl_ms: int) -> _HeldLease:
        held = _HeldLease(self._begin(ttl_ms * 4 / 3_000), self._path(member), ttl_ms)
        try:
            await held.confirm()
        except BaseException:
            held.leave()
            raise
        old, self._held[member] = self._held.get(member), held
        if old is not None:
            old.leave()
        return held

    async def release(self, member: str) -> None:
        async with self._turn:
            await self._session.ask(call("delete_async", self._path(member)))
            held = self._held.pop(member, None)
            if held is not None:
                await held.end()

    async def lives(self, member: str) -> bool:
        return await self._stat(member) is not None

    async def ended(self, member: str) -> None:
        await until_ended(lambda: self._left_s(member), self._session.news, _LOOK_S)

    async def _left_s(self, member: str) -> float:
        return inf if await self.lives(member) else 0.0

    async def close(self) -> None:
        """End all leases of this process."""
        async with self._turn:
            await asyncio.gather(*[held.end() for held in self._held.values()])
            self._held.clear()

    async def _stat(self, member: str) -> Any:
        # The server may be behind and not know of a new lease yet, so it catches up first.
        path = self._path(member)
        _, stat = await self._session.ask(
            call("sync_async", path), call("exists_async", path, watch=self._session.watch)
        )
        return stat

    def _path(self, member: str) -> str:
        # The prefix is needed because a node cannot be named "." or "..".
        return f"{self._folder}/m-{quote(member, safe='')}"
