"""The files of the local log: entries with checksums that are synced one by one, and a snapshot beside them.

    cluster/lock       held by the process that has the log open
    cluster/entries    a head (the index up to which entries were trimmed), then a frame for each entry
    cluster/snapshot   a head (its index), then the snapshot

- An entry is synced before the next one is written, so a crash can leave only the last frame unfinished. A bad frame
  without a whole frame behind it was never acknowledged and is cut off. A bad frame with a whole one behind it is
  damage, and so is one that lacks no sector (`core/torn.py`): the log refuses to open.
- Both files are replaced as a whole: written under another name, synced, renamed. A crash leaves the old or the new.
- The snapshot is durable before entries are trimmed.

A second RocksDB would need a dozen files and its own caches for a few commands a day.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from zlib import crc32

from everbell.core.torn import lacks_sectors
from everbell.errors import LogBroken, LogCorrupt, LogUnusable
from everbell.logs.port import LogEntry, Snapshot

_log = logging.getLogger("everbell.logs.local")

_ENTRIES_FORMAT = b"everbell entries 1\n"
_SNAPSHOT_FORMAT = b"everbell snapshot 1\n"
_HEAD = Struct(">QI")  # A number, and a checksum. In a snapshot, the checksum covers the data too.
_MARK = b"\xebell"
_FRAME = Struct(">4sIQI")  # The mark, the length, the index, and a checksum of those and of the data.


class LocalFile:
    """The files, open for the only process that may write them. Calls block; errors of the system pass through."""

    def __init__(self, folder: Path) -> None:
        """Open or create the files. Raises `LogCorrupt`, `LogUnusable`, `OSError`."""
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take_lock()
            self.snapshot = self._read_snapshot()
            self._make_if_new()
            self.trimmed, self.entries, self._end = self._read_entries()
            self._fd = self._open_entries()
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, entry: LogEntry) -> None:
        """Append an entry and sync it. After an `OSError` nothing of it is left; after `LogBroken` that is unknown."""
        frame = _frame(entry)
        try:
            _write(self._fd, frame, self._end)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        _sync(self._fd)
        self._end += len(frame)

    def save(self, snapshot: Snapshot) -> None:
        head = _HEAD.pack(snapshot.index, _sum_of(snapshot))
        self._replace("snapshot", _SNAPSHOT_FORMAT + head + snapshot.data)

    def trim(self, trimmed: int, entries: Sequence[LogEntry]) -> None:
        """Replace the entries by those after `trimmed`."""
        content = _head_of_entries(trimmed) + b"".join(map(_frame, entries))
        self._replace("entries", content)
        os.close(self._fd)
        self._fd = self._open_entries()
        self._end = len(content)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"the log in {self._folder} is in use by another process: stop that one first"
            raise LogUnusable(message) from error

    def _make_if_new(self) -> None:
        if (self._folder / "entries").exists():
            return
        if self.snapshot is not None:
            raise self._damage("entries", "it is missing")
        self._replace("entries", _head_of_entries(0))
        _sync_folder(self._folder.absolute().parent)

    def _open_entries(self) -> int:
        return os.open(self._folder / "entries", os.O_RDWR | os.O_CLOEXEC)

    def _read_snapshot(self) -> Snapshot | None:
        try:
            content = (self._folder / "snapshot").read_bytes()
        except FileNotFoundError:
            return None
        index, sum, start = self._read_head("snapshot", content, _SNAPSHOT_FORMAT)
        snapshot = Snapshot(index, content[start:])
        if sum != _sum_of(snapshot):
            raise self._damage("snapshot", "its sum is wrong")
        return snapshot

    def _read_entries(self) -> tuple[int, list[LogEntry], int]:
        """The trimmed index, the entries, and the end of the last frame. Cuts off an unfinished frame behind it."""
        content = (self._folder / "entries").read_bytes()
        trimmed, sum, end = self._read_head("entries", content, _ENTRIES_FORMAT)
        if sum != crc32(content[: end - 4]):
            raise self._damage("entries", "the sum of its head is wrong")
        entries: list[LogEntry] = []
        while (entry := _entry_at(content, end)) is not None:
            if entry.index != trimmed + len(entries) + 1:
                raise self._damage("entries", f"entry {entry.index} is where {trimmed + len(entries) + 1} should be")
            entries.append(entry)
            end += _FRAME.size + len(entry.data)
        if end < len(content):
            self._cut(content, end, trimmed + len(entries) + 1)
        return trimmed, entries, end

    def _cut(self, content: bytes, end: int, index: int) -> None:
        """Cut off an unfinished frame, that of entry `index`. Raises `LogCorrupt` if the frame is damaged instead."""
        if _is_damaged(content, end, index):
            raise self._damage("entries", f"the sum of entry {index} is wrong")
        place = end
        while (place := content.find(_MARK, place + 1)) >= 0:
            if _entry_at(content, place) is not None:
                raise self._damage("entries", f"the bytes at {end} are no entry, and there are entries behind them")
        fd = self._open_entries()
        try:
            os.ftruncate(fd, end)
            _sync(fd)
        finally:
            os.close(fd)
        _log.warning(
            "%s: %d bytes of an entry that was never acknowledged were cut off", self._folder, len(content) - end
        )

    def _read_head(self, name: str, content: bytes, format: bytes) -> tuple[int, int, int]:
        """The number, the checksum, and the end of the head."""
        end = len(format) + _HEAD.size
        if len(content) >= end and content.startswith(format):
            return (*_HEAD.unpack_from(content, len(format)), end)
        words = content[: len(format)].rpartition(b" ")
        if words[0] == format.rpartition(b" ")[0]:
            raise LogUnusable(f"{self._folder / name} was written by a newer Everbell: install a newer version")
        raise self._damage(name, "its head is not one of Everbell")

    def _replace(self, name: str, content: bytes) -> None:
        draft = self._folder / f"{name}.new"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, content, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        draft.rename(self._folder / name)
        _sync_folder(self._folder)

    def _damage(self, name: str, what: str) -> LogCorrupt:
        return LogCorrupt(
            f"{self._folder / name} is damaged, {what}: restore the folder from a backup, or, to begin with a new "
            "log, move it away"
        )


def _head_of_entries(trimmed: int) -> bytes:
    head = _ENTRIES_FORMAT + trimmed.to_bytes(8, "big")
    return head + crc32(head).to_bytes(4, "big")


def _sum_of(snapshot: Snapshot) -> int:
    return crc32(snapshot.data, crc32(snapshot.index.to_bytes(8, "big")))


def _frame(entry: LogEntry) -> bytes:
    return _FRAME.pack(_MARK, len(entry.data), entry.index, _sum_of_frame(entry)) + entry.data


def _sum_of_frame(entry: LogEntry) -> int:
    return crc32(entry.data, crc32(_FRAME.pack(_MARK, len(entry.data), entry.index, 0)))


def _entry_at(content: bytes, place: int) -> LogEntry | None:
    """The entry in the frame at `place`; None if there is no whole frame."""
    start = place + _FRAME.size
    if start > len(content):
        return None
    mark, length, index, sum = _FRAME.unpack_from(content, place)
    entry = LogEntry(index, content[start : start + length])
    return entry if mark == _MARK and len(entry.data) == length and sum == _sum_of_frame(entry) else None


def _is_damaged(content: bytes, place: int, index: int) -> bool:
    """Whether a bit of the last frame, which is that of entry `index`, was flipped after it had been written."""
    start = place + _FRAME.size
    if start > len(content):
        return False
    mark, length, found, sum = _FRAME.unpack_from(content, place)
    if sum == _sum_of_frame(LogEntry(index, content[start:])):  # All of it is right, except the head.
        return True
    is_complete = (mark, found, length) == (_MARK, index, len(content) - start)
    return is_complete and not lacks_sectors(content, place, len(content))


def _write(fd: int, content: bytes, place: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, place)
        rest, place = rest[written:], place + written


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        _sync(fd)
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        # The kernel may have dropped the pages that it failed to write, so a second fsync would prove nothing.
        raise LogBroken(f"syncing the log failed ({error.strerror}): end the process and start again") from error
