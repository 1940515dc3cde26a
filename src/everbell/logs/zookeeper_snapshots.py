"""Snapshots in ZooKeeper. A node holds a megabyte, so they are compressed, cut into parts, and named by one node.

    snapshot                        the current one: index, folder, number of parts and checksum; replaced by version
    snapshots/<index>-<number>/0    its parts

A snapshot is written in full before it is named. The writer that names a newer one removes the folders of older
ones, including unfinished ones. The writer of an unfinished one notices that, and stops.
"""

from __future__ import annotations

import zlib
from operator import methodcaller as call

import msgspec
from kazoo.exceptions import BadVersionError, NoNodeError

from everbell.errors import LogCorrupt, LogUnavailable
from everbell.logs.port import Snapshot
from everbell.logs.zookeeper_session import Session

PART_BYTES = 512 << 10
_AT_ONCE = 8
_TRIES = 10


class _Named(msgspec.Struct, frozen=True):
    index: int
    folder: str
    parts: int
    sum: int


class Snapshots:
    """Snapshots under `root`, where the nodes `snapshot` and `snapshots` exist."""

    def __init__(self, session: Session, root: str) -> None:
        self._session = session
        self._name = f"{root}/snapshot"
        self._folders = f"{root}/snapshots"

    async def load(self) -> Snapshot | None:
        """The current snapshot. Raises `LogCorrupt`."""
        for _ in range(_TRIES):
            named, _version = await self._named()
            if named is None:
                return None
            if (packed := await self._read(named)) is not None:
                if zlib.crc32(packed) != named.sum:
                    raise LogCorrupt(f"the snapshot in {named.folder} is damaged: restore ZooKeeper from a backup")
                return Snapshot(named.index, zlib.decompress(packed))
        raise LogUnavailable("the snapshot was replaced faster than it could be read; trying again")

    async def save(self, snapshot: Snapshot) -> bool:
        """Make the snapshot current, unless the present one is as new. Returns whether it was made current."""
        named, version = await self._named()
        if named is not None and named.index >= snapshot.index:
            return False
        new = await self._write(snapshot)
        while new is not None and (named is None or named.index < new.index):
            [answer] = await self._session.ask(call("set_async", self._name, msgspec.json.encode(new), version))
            if not isinstance(answer, BadVersionError):
                await self._remove_before(new)
                return True
            named, version = await self._named()
        return False

    async def _named(self) -> tuple[_Named | None, int]:
        [(content, stat)] = await self._session.ask(call("get_async", self._name))
        return (msgspec.json.decode(content, type=_Named) if content else None), stat.version

    async def _read(self, named: _Named) -> bytes | None:
        """The bytes of a snapshot; None if it was removed meanwhile."""
        parts: list[bytes] = []
        for start in range(0, named.parts, _AT_ONCE):
            paths = [f"{self._folders}/{named.folder}/{part}" for part in range(start, named.parts)[:_AT_ONCE]]
            answers = await self._session.ask(*[call("get_async", path) for path in paths])
            if any(isinstance(answer, NoNodeError) for answer in answers):
                return None
            parts += [content for content, _stat in answers]
        return b"".join(parts)

    async def _write(self, snapshot: Snapshot) -> _Named | None:
        """Write a snapshot; None if the writer of a newer one removed it meanwhile."""
        packed = zlib.compress(snapshot.data)
        prefix = f"{self._folders}/{snapshot.index:020d}-"
        [path] = await self._session.ask(call("create_async", prefix, b"", sequence=True))
        parts = [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]
        for number, part in enumerate(parts):
            [answer] = await self._session.ask(call("create_async", f"{path}/{number}", part))
            if isinstance(answer, NoNodeError):
                return None
        return _Named(snapshot.index, path.rpartition("/")[2], len(parts), zlib.crc32(packed))

    async def _remove_before(self, named: _Named) -> None:
        [folders] = await self._session.ask(call("get_children_async", self._folders))
        for folder in sorted(folders):
            if int(folder.partition("-")[0]) <= named.index and folder != named.folder:
                await self._remove(f"{self._folders}/{folder}")

    async def _remove(self, path: str) -> None:
        [parts] = await self._session.ask(call("get_children_async", path))
        if isinstance(parts, NoNodeError):
            return
        paths = [*(f"{path}/{part}" for part in parts), path]
        # A folder that is being written is not empty and stays; the next snapshot removes it.
        await self._session.ask(*[call("delete_async", path) for path in paths])
