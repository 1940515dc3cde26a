"""A disk that replays recorded calls, and tells which contents a power failure at that moment could leave.

The rules are those of POSIX, which promises less than the file systems of Linux do, with one exception:

- A write may reach the disk at any time until an fsync of its file has returned. Each sector of 512 bytes goes by
  itself, in any order; a sector that did not get there has its former content, or zeros.
- The new length of a file may be kept without its content, and the content without the length.
- The creation, renaming or removal of a name may reach the disk at any time until an fsync of its directory has
  returned, in any order. A renaming is atomic.
- The exception: an fsync of a new file keeps its name, too, as on ext4, XFS and Btrfs. RocksDB relies on that: it names
  a new manifest in CURRENT without an fsync of the directory in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random

from tests.power_loss.calls import Call, content

SECTOR = 512
_FAILED = -1

Image = dict[str, bytes]
"""The files of a disk: paths from its root, and contents."""


@dataclass(eq=False)
class PendingWrite:
    """A write or a new length that no fsync has covered."""

    place: int
    data: bytes
    length: int | None = None
    """The new length, if the file was cut or extended."""
    is_done: bool = False


@dataclass(eq=False)
class Inode:
    """A file. No power failure can change `synced`."""

    synced: bytes = b""
    pending: list[PendingWrite] = field(default_factory=list)
    is_folder: bool = False

    def after(self, count: int) -> bytes:
        """The content when the first `count` pending writes were made."""
        made = bytearray(self.synced)
        for write in self.pending[:count]:
            if write.length is not None:
                del made[write.length :]
                made.extend(bytes(write.length - len(made)))
            else:
                made.extend(bytes(max(write.place - len(made), 0)))
                made[write.place : write.place + len(write.data)] = write.data
        return bytes(made)

    def sync(self, count: int) -> None:
        """The first `count` pending writes are safe."""
        self.synced = self.after(count)
        del self.pending[:count]

    def survives(self, luck: Random) -> bytes:
        """A content that a power failure could leave."""
        count = len(self.pending)
        fate = luck.choice(("nothing", "everything", "torn", "sectors"))
        if not count or fate == "nothing":
            return self.synced
        if fate == "everything":
            return self.after(count)
        if fate == "torn":
            return self._torn(luck)
        return self._sectors(luck)

    def _torn(self, luck: Random) -> bytes:
        """Writes in order; the last one stops somewhere."""
        last = luck.randrange(len(self.pending))
        write = self.pending[last]
        keep = luck.randint(0, len(write.data))
        pending = [*self.pending[:last], PendingWrite(write.place, write.data[:keep], write.length)]
        return Inode(self.synced, pending).after(len(pending))

    def _sectors(self, luck: Random) -> bytes:
        """Each sector has a fate of its own, and so has the length."""
        count = len(self.pending)
        times = [0, count, luck.randint(0, count), luck.randint(0, count)]
        versions = [self.after(time) for time in times]
        size = len(versions[luck.choice((1, 1, 1, 0, 2))])
        unit = luck.choice((SECTOR, 8 * SECTOR))
        made = bytearray()
        for place in range(0, size, unit):
            sector = luck.choice(versions)[place : min(place + unit, size)]
            made += sector + bytes(min(unit, size - place) - len(sector))
        return bytes(made)


@dataclass(eq=False)
class NameChange:
    """Names of one directory that were created, replaced or removed together."""

    folder: str
    names: dict[str, Inode | None]


@dataclass(eq=False)
class OpenFile:
    """A file descriptor."""

    path: str
    inode: Inode
    position: int = 0
    appends: bool = False


class Disk:
    """All files below one directory, `root`."""

    def __init__(self, root: str, image: Mapping[str, bytes] | None = None) -> None:
        self._root = root.rstrip("/")
        self._names: dict[str, Inode] = {}
        self._synced_names: dict[str, Inode] = {}
        self._pending_names: list[NameChange] = []
        self._open: dict[int, OpenFile] = {}
        self._writes: dict[int, PendingWrite] = {}
        self._syncs: dict[int, list[PendingWrite] | list[NameChange]] = {}
        for path, data in (image or {}).items():
            for folder in reversed(PurePosixPath(path).parents[:-1]):
                self._names.setdefault(str(folder), Inode(is_folder=True))
            self._names[path] = Inode(data)
        self._synced_names.update(self._names)

    @property
    def pending(self) -> int:
        """The number of writes and names that a power failure could take away now."""
        files = {id(inode): len(inode.pending) for inode in self._names.values()}
        return sum(files.values()) + len(self._pending_names)

    def play(self, call: Call) -> None:
        """Follow one call."""
        if call.result is None:
            self._begin(call)
        elif call.result > _FAILED:
            self._end(call)
        else:
            assert self._writes.pop(call.number, None) is None, f"a write failed: {call}"

    def written(self) -> Image:
        """The files as the program sees them, and as they are when only the program is killed."""
        return {path: inode.after(len(inode.pending)) for path, inode in self._names.items() if not inode.is_folder}

    def survives(self, luck: Random) -> Image:
        """Files that a power failure could leave."""
        names = dict(self._synced_names)
        fate = luck.choice(("nothing", "everything", "prefix", "any"))
        kept = {"nothing": 0, "everything": len(self._pending_names)}.get(fate)
        if kept is None:
            kept = luck.randint(0, len(self._pending_names)) if fate == "prefix" else len(self._pending_names)
        for change in self._pending_names[:kept]:
            if fate != "any" or luck.random() < 0.5:
                _rename(names, change)
        # A file that has several names has one content.
        contents: dict[int, bytes] = {}
        image: Image = {}
        for path, inode in sorted(names.items()):
            if not inode.is_folder and all(str(above) in names for above in PurePosixPath(path).parents[:-1]):
                if id(inode) not in contents:
                    contents[id(inode)] = inode.survives(luck)
                image[path] = contents[id(inode)]
        return image

    def _begin(self, call: Call) -> None:
        name = call.name
        if name in ("write", "pwrite64", "ftruncate"):
            file = self._open.get(int(call.arguments[0]))
            if file is not None:
                write = _pending_write(call, file)
                self._writes[call.number] = write
                file.inode.pending.append(write)
        elif name in ("fsync", "fdatasync"):
            file = self._open.get(int(call.arguments[0]))
            if file is not None and file.inode.is_folder:
                self._syncs[call.number] = [each for each in self._pending_names if each.folder == file.path]
            elif file is not None:
                self._syncs[call.number] = [each for each in file.inode.pending if each.is_done]
        elif name == "close":
            self._open.pop(int(call.arguments[0]), None)
        elif name in ("fallocate",):
            file = self._open.get(int(call.arguments[0]))
            assert file is None or "KEEP_SIZE" in call.arguments[1], f"a call that the disk does not know: {call}"

    def _end(self, call: Call) -> None:
        name, arguments, result = call.name, call.arguments, call.result or 0
        if call.number in self._writes:
            self._end_write(call, result)
        elif call.number in self._syncs:
            self._end_sync(int(arguments[0]), self._syncs.pop(call.number))
        elif name == "openat":
            self._opened(self._path(arguments[0], arguments[1]), arguments[2], result)
        elif name == "lseek" and int(arguments[0]) in self._open:
            self._open[int(arguments[0])].position = result
        elif name in ("mkdir", "mkdirat"):
            self._name(self._path(*arguments[: len(arguments) - 1][-2:]), Inode(is_folder=True))
        elif name in ("unlink", "unlinkat", "rmdir"):
            places = arguments[:1] if name != "unlinkat" else arguments[:2]
            self._name(self._path(*places), None)
        elif name in ("rename", "renameat", "renameat2"):
            old, new = (arguments[:1], arguments[1:2]) if name == "rename" else (arguments[:2], arguments[2:4])
            self._renamed(self._path(*old), self._path(*new))
        elif name in ("link", "linkat"):
            old, new = (arguments[:1], arguments[1:2]) if name == "link" else (arguments[:2], arguments[2:4])
            self._linked(self._path(*old), self._path(*new))
        elif name not in ("close", "write", "pwrite64", "fsync", "fdatasync", "ftruncate", "lseek", "fallocate"):
            touched = [file.path for fd, file in self._open.items() if str(fd) in arguments[:2]]
            assert not touched, f"a call that the disk does not know: {call}"

    def _end_write(self, call: Call, result: int) -> None:
        write = self._writes.pop(call.number)
        write.is_done = True
        if call.name != "ftruncate":
            assert result == len(write.data), f"a short write: {call.name} {result}"
        if call.name == "write" and (file := self._open.get(int(call.arguments[0]))) is not None:
            file.position = write.place + result

    def _end_sync(self, fd: int, covered: list[PendingWrite] | list[NameChange]) -> None:
        file = self._open[fd]
        if file.inode.is_folder:
            for change in covered:
                if isinstance(change, NameChange) and change in self._pending_names:
                    self._pending_names.remove(change)
                    _rename(self._synced_names, change)
            return
        count = 0
        pending = file.inode.pending
        while count < len(pending) and any(pending[count] is each for each in covered):
            count += 1
        file.inode.sync(count)
        for change in [each for each in self._pending_names if file.inode in each.names.values()]:
            if len(change.names) == 1:  # A creation, and not a renaming.
                self._pending_names.remove(change)
                _rename(self._synced_names, change)

    def _opened(self, path: str | None, flags: str, fd: int) -> None:
        if path is None:
            return
        inode = self._names.get(path)
        if inode is None:
            is_folder = "O_CREAT" not in flags
            inode = Inode(is_folder=is_folder)
            if path and not is_folder:
                self._name(path, inode)
        elif "O_TRUNC" in flags and inode.after(len(inode.pending)):
            inode.pending.append(PendingWrite(0, b"", 0, is_done=True))
        self._open[fd] = OpenFile(path, inode, appends="O_APPEND" in flags)

    def _renamed(self, old: str | None, new: str | None) -> None:
        assert (old is None) == (new is None), "a renaming across the border of the disk"
        if old is not None and new is not None:
            inode = self._names[old]
            assert not inode.is_folder, "the disk does not know how to rename a directory"
            assert _folder(old) == _folder(new), "the disk does not know how to move a file"
            self._change(NameChange(_folder(old), {old: None, new: inode}))

    def _linked(self, old: str | None, new: str | None) -> None:
        if old is not None and new is not None:
            self._name(new, self._names[old])

    def _name(self, path: str | None, inode: Inode | None) -> None:
        if path is not None:
            self._change(NameChange(_folder(path), {path: inode}))

    def _change(self, change: NameChange) -> None:
        _rename(self._names, change)
        self._pending_names.append(change)

    def _path(self, *place: str) -> str | None:
        """The path from the root of this disk; None if the place lies elsewhere."""
        path = os.path.normpath(os.fsdecode(content(place[-1])))
        if not path.startswith("/"):
            return None
        if path == self._root:
            return ""
        return path[len(self._root) + 1 :] if path.startswith(self._root + "/") else None


def _pending_write(call: Call, file: OpenFile) -> PendingWrite:
    if call.name == "ftruncate":
        return PendingWrite(0, b"", int(call.arguments[1]))
    data = content(call.arguments[1])
    if call.name == "pwrite64":
        return PendingWrite(int(call.arguments[3]), data)
    place = len(file.inode.after(len(file.inode.pending))) if file.appends else file.position
    return PendingWrite(place, data)


def _rename(names: dict[str, Inode], change: NameChange) -> None:
    for path, inode in change.names.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
