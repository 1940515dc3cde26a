"""Leases in ZooKeeper: nodes that live as long as the session of their holder.

- Each lease has a session of its own, whose time-out follows from the lease's. The servers expire sessions by their own
  monotonic clocks. They may learn up to half a tick late that a session was in use, so the time-out is longer than the
  lease by a third: a killed holder's lease ends by that much later, and none too soon. (It cannot be
  longer than the servers allow, with `maxSessionTimeout`: 40 s unless told otherwise.)
- The driver keeps a session alive by itself, even if our loop is stuck. So a timer in a thread ends the session when
  the time of the lease is over: nobody keeps a lease without renewing it.
- Renewing is a round trip in that session, which finds the node still in place, or makes it anew.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from operator import methodcaller as call
from typing import Any
from urllib.parse import quote

from everbell.errors import LogError, LogUnavailable
from everbell.logs.zookeeper_session import Session

_TRIES = 5
_RETRY_S = 0.5
_LOOK_S = 5.0
"""How often to ask although nothing was told."""


class _Held:
    """A lease that this process holds."""

    def __init__(self, session: Session, path: str, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        """The longest that it can be renewed for."""
        self.is_over = False
        self._session = session
        self._path = path
        self._timer: threading.Timer | None = None

    async def confirm(self) -> None:
        """Have the node in place, as our own."""
        for _ in range(_TRIES):
            [stat] = await self._session.ask(call("exists_async", self._path))
            if stat is None:
                await self._session.ask(call("create_async", self._path, b"", ephemeral=True))
            elif stat.ephemeralOwner == self._session.id:
                return
            else:
                await self._session.ask(self._replace)
        raise LogUnavailable("the lease could not be renewed, somebody else renews it at the same time; trying again")

    def _replace(self, client: Any) -> Any:
        """In one step, so that nobody finds that it ended."""
        change = client.transaction()
        change.delete(self._path)
        change.create(self._path, b"", ephemeral=True)
        return change.commit_async()

    def keep(self, ttl_ms: int) -> None:
        """End it after a time, unless this is called again before."""
        self._stop_timer()
        self._timer = threading.Timer(ttl_ms / 1_000, self._run_out)
        self._timer.daemon = True
        self._timer.start()

    async def end(self) -> None:
        """End the session."""
        self._stop_timer()
        self.is_over = True
        await self._session.end()

    def leave(self) -> None:
        """The same, without waiting: a renewal is in a hurry, and the server may be away."""
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
    """Leases under `folder`; `session` is the one of the log, `begin` makes another one with a time-out in seconds."""

    def __init__(self, session: Session, folder: str, begin: Callable[[float], Session]) -> None:
        self._session = session
        self._folder = folder
        self._begin = begin
        self._held: dict[str, _Held] = {}
        self._turn = asyncio.Lock()

    async def renew(self, member: str, ttl_ms: int) -> None:
        """See the port."""
        async with self._turn:
            held = self._held.get(member)
            if held is None or held.is_over or held.ttl_ms < ttl_ms:
                held = await self._replace(member, ttl_ms)
            else:
                await held.confirm()
            held.keep(ttl_ms)

    async def _replace(self, member: str, ttl_ms: int) -> _Held:
        held = _Held(self._begin(ttl_ms * 4 / 3_000), self._path(member), ttl_ms)
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
        """See the port."""
        async with self._turn:
            await self._session.ask(call("delete_async", self._path(member)))
            held = self._held.pop(member, None)
            if held is not None:
                await held.end()

    async def lives(self, member: str) -> bool:
        """See the port."""
        return await self._stat(member) is not None

    async def ended(self, member: str) -> None:
        """See the port."""
        while True:
            ticket = self._session.news.ticket()
            try:
                if await self._stat(member) is None:
                    return
            except LogError:
                await asyncio.sleep(_RETRY_S)
            else:
                await self._session.news.wait(ticket, _LOOK_S)

    async def close(self) -> None:
        """End all that are held here."""
        async with self._turn:
            await asyncio.gather(*[held.end() for held in self._held.values()])
            self._held.clear()

    async def _stat(self, member: str) -> Any:
        """The server that we talk to may be behind, and not know of a lease that began: it catches up first."""
        path = self._path(member)
        _, stat = await self._session.ask(
            call("sync_async", path), call("exists_async", path, watch=self._session.watch)
        )
        return stat

    def _path(self, member: str) -> str:
        # With something before it, for a node cannot be named "." or "..".
        return f"{self._folder}/m-{quote(member, safe='')}"
