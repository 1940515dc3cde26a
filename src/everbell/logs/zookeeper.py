"""The log in ZooKeeper: sequential nodes, watches, snapshots in parts, leases as ephemeral nodes.

    format              the version of this layout
    entries/e-<number>  numbered by ZooKeeper from 0 on without gaps, because failed creations do not count; the entry
                        with index i has number i - 1, so a reader can get and watch it by name
    trimmed             the index up to which entries are removed; set before the removal
    snapshot(s)         see `zookeeper_snapshots`
    leases/m-<member>   see `zookeeper_leases`

A reader may talk to a server that is behind and sees an older state then, but never one with holes. It asks for the
entries first and for `trimmed` afterwards, so it never takes a trimmed entry for one that does not exist yet.

If the connection is lost during an append, the outcome is unknown, and `LogUncertain` is raised. ZooKeeper numbers
up to 2³¹ entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import methodcaller as call

from kazoo.exceptions import BadVersionError, NoNodeError

from everbell.errors import LogUnavailable, LogUncertain, LogUnusable, Trimmed
from everbell.logs.port import LogEntry, Snapshot, check_size
from everbell.logs.zookeeper_address import ZookeeperAddress
from everbell.logs.zookeeper_leases import ZookeeperLeases
from everbell.logs.zookeeper_session import Session
from everbell.logs.zookeeper_snapshots import Snapshots

FORMAT = b"1"
_SESSION_S = 10.0
_AT_ONCE = 32


class ZookeeperLog:
    """A handle of a log in ZooKeeper; see the port."""

    def __init__(self, address: ZookeeperAddress, timeout_s: float) -> None:
        self._root = address.root
        self._address = address
        self._timeout_s = timeout_s
        self._session = self._begin(_SESSION_S)
        self._snapshots = Snapshots(self._session, address.root)
        self._leases = ZookeeperLeases(self._session, f"{address.root}/leases", self._begin)

    def _begin(self, session_s: float) -> Session:
        return Session(self._address, session_s, self._timeout_s)

    async def open(self) -> None:
        """Create the missing nodes. Raises `LogUnusable` or `LogUnavailable`."""
        folders = [f"{self._root}/{name}" for name in ("entries", "snapshots", "leases")]
        await self._session.ask(*[call("ensure_path_async", path) for path in folders])
        contents = {"format": FORMAT, "trimmed": b"0", "snapshot": b""}
        # Existing nodes keep their content.
        await self._session.ask(
            *[call("create_async", f"{self._root}/{n}", content) for n, content in contents.items()]
        )
        [(found, _stat)] = await self._session.ask(call("get_async", f"{self._root}/format"))
        if found != FORMAT:
            raise LogUnusable(
                f"{self._address.name} was written by another version of Everbell (format {found.decode()}, this one "
                f"reads {FORMAT.decode()}): install that version, or name another path"
            )

    async def append(self, data: bytes) -> int:
        check_size(data)
        [path] = await self._session.ask(
            call("create_async", f"{self._root}/entries/e-", data, sequence=True), lost=LogUncertain
        )
        return 1 + _number(path)

    async def read(self, after: int, limit: int) -> Sequence[LogEntry]:
        entries: list[LogEntry] = []
        while len(entries) < limit:
            start = after + len(entries) + 1
            indices = range(start, start + min(_AT_ONCE, limit - len(entries)))
            *answers, (content, _stat) = await self._session.ask(
                *[call("get_async", self._entry(index)) for index in indices],
                call("get_async", f"{self._root}/trimmed"),
            )
            if int(content) > after:
                raise Trimmed.at(after)
            for index, answer in zip(indices, answers, strict=True):
                if isinstance(answer, NoNodeError):
                    return entries
                entries.append(LogEntry(index, answer[0]))
        return entries

    async def wait(self, after: int, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        news, next_entry = self._session.news, self._entry(after + 1)
        while (left_s := end_s - loop.time()) > 0:
            ticket = news.ticket()
            try:
                async with asyncio.timeout(left_s):
                    [stat] = await self._session.ask(call("exists_async", next_entry, watch=self._session.watch))
                    if stat is not None:
                        return
            except (LogUnavailable, TimeoutError):
                pass  # The session rings `news` after a reconnect.
            await news.wait(ticket, end_s - loop.time())

    async def save(self, snapshot: Snapshot, keep: int) -> None:
        if await self._snapshots.save(snapshot):
            await self._trim(snapshot.index - keep)

    async def load(self) -> Snapshot | None:
        return await self._snapshots.load()

    async def renew(self, member: str, ttl_ms: int) -> None:
        await self._leases.renew(member, ttl_ms)

    async def release(self, member: str) -> None:
        await self._leases.release(member)

    async def lives(self, member: str) -> bool:
        return await self._leases.lives(member)

    async def now(self) -> int | None:
        # The server has no clock to read, but it records when a node was written.
        path = f"{self._root}/clock"
        await self._session.ask(call("create_async", path, b""))
        [stat] = await self._session.ask(call("set_async", path, b""))
        now: int = stat.mtime
        return now

    async def ended(self, member: str) -> None:
        await self._leases.ended(member)

    async def close(self) -> None:
        await self._leases.close()
        await self._session.end()

    async def _trim(self, index: int) -> None:
        """Advance `trimmed`, then remove the entries, including those that an earlier trim left."""
        path = f"{self._root}/trimmed"
        while True:
            [(content, stat)] = await self._session.ask(call("get_async", path))
            trimmed = max(int(content), index)
            [answer] = await self._session.ask(call("set_async", path, str(trimmed).encode(), stat.version))
            if not isinstance(answer, BadVersionError):
                break
        [names] = await self._session.ask(call("get_children_async", f"{self._root}/entries"))
        gone = sorted(name for name in names if _number(name) < trimmed)
        for start in range(0, len(gone), _AT_ONCE):
            paths = [f"{self._root}/entries/{name}" for name in gone[start : start + _AT_ONCE]]
            await self._session.ask(*[call("delete_async", path) for path in paths])

    def _entry(self, index: int) -> str:
        return f"{self._root}/entries/e-{index - 1:010d}"


def _number(path: str) -> int:
    return int(path.rpartition("-")[2])
