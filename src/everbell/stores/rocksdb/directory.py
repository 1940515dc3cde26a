"""The directory of a RocksDB store, with a marker file.

RocksDB would create a database in any directory, and a new, empty one if the file that names the old one is lost. So a
marker file says that the directory holds a store, in which format, and with how many partitions:

- The marker is first written under another name, and renamed when the database exists. A crash in between leaves a
  directory that counts as new, because nothing was acknowledged yet.
- With the marker, the database has to exist: missing files are reported and never created again.
"""

from __future__ import annotations

import fcntl
import os
from errno import EACCES, EAGAIN, EDQUOT, ENOSPC
from pathlib import Path

import msgspec

from everbell.errors import StoreCorrupt, StoreFull, StoreUnusable
from everbell.stores.opening import check_format, partitions_for

FORMAT = 1  # The format that this version writes, and the newest that it reads.

MARKER = "everbell.json"
_DRAFT = "everbell.json.new"
LOG_FOLDER = "cluster"
OWNER_ONLY = 0o700
"""The mode of directories with data: payloads and secrets are in their files, which RocksDB makes readable for all."""
"""The log of a cluster on one machine (logs/local.py). It is not part of the store, but of its backup."""
_NOT_OURS_BUT_HARMLESS = {"lost+found", LOG_FOLDER}


class Marker(msgspec.Struct, frozen=True):
    """The content of the marker file."""

    format: int
    partitions: int
    created_at: int


def copy_log(directory: Path, copy: Path) -> None:
    """Copy the log beside a store, if there is one. It is small, and its reader repairs an incomplete end."""
    source, target = directory / LOG_FOLDER, copy / LOG_FOLDER
    if not source.exists():
        return
    target.mkdir(mode=OWNER_ONLY)
    for file in sorted(source.iterdir()):
        with (target / file.name).open("xb") as written:
            written.write(file.read_bytes())
            written.flush()
            os.fsync(written.fileno())


def claim(directory: Path, partitions: int, created_at: int) -> tuple[Marker, bool]:
    """Check that the directory holds a store, or can become one. Returns its marker, and whether the store is new.

    For a new store, the caller has to call `settle` when the database exists.
    """
    try:
        directory.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        names = {entry.name for entry in directory.iterdir()} - _NOT_OURS_BUT_HARMLESS
        if MARKER in names:
            marker = _read_marker(directory)
            _check_whole(directory, names)
            return marker, False
        if names and _DRAFT not in names:
            raise StoreUnusable(
                f"{directory} is not empty and not a store of Everbell: name a new or empty directory, or the right one"
            )
        return _draft(directory, partitions, created_at), True
    except OSError as error:
        failure = StoreFull if error.errno in (ENOSPC, EDQUOT) else StoreUnusable
        raise failure(f"{directory} cannot be used as a store: {error.strerror}") from error


def lock(directory: Path) -> int:
    """Take the store for this process, before its logs are checked; closing the returned descriptor gives it back.

    Raises `StoreUnusable` if another process has the store. RocksDB takes a lock of its own when it opens, which is too
    late for the check. Versions before this one had only that lock, so it is tried here, too. (To close its file drops
    that lock of this very process, but a process that has it also has the lock of the directory.)
    """
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (directory / "LOCK").exists():
            with (directory / "LOCK").open("rb+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (EAGAIN, EACCES):
            message = f"{directory} is in use by another process: stop that one first, or name another directory"
            raise StoreUnusable(message) from error
        raise StoreUnusable(f"{directory} cannot be used as a store: {error.strerror}") from error
    return fd


def settle(directory: Path) -> None:
    """The database of a new store exists, and has to exist from now on."""
    (directory / _DRAFT).rename(directory / MARKER)
    _sync(directory)


def mark(directory: Path, marker: Marker) -> None:
    """Put a marker beside a complete database."""
    _write(directory / MARKER, msgspec.json.encode(marker))
    _sync(directory)


def free_bytes(directory: Path) -> int:
    """How many bytes this process may still write."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def log_bytes(directory: Path) -> int:
    """The size of the write-ahead log, which is written again as a whole when the database is opened."""
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def sync_above(directory: Path) -> None:
    """Make the name of the directory durable."""
    _sync(directory.absolute().parent)


def _draft(directory: Path, partitions: int, created_at: int) -> Marker:
    marker = Marker(FORMAT, partitions_for(partitions), created_at)
    _write(directory / _DRAFT, msgspec.json.encode(marker))
    _sync(directory)
    sync_above(directory)
    return marker


def _read_marker(directory: Path) -> Marker:
    try:
        marker = msgspec.json.decode((directory / MARKER).read_bytes(), type=Marker)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{directory / MARKER} cannot be read ({error}): restore the store from a backup") from error
    check_format(str(directory), marker.format, FORMAT)
    return marker


def _check_whole(directory: Path, names: set[str]) -> None:
    """Check for the files without which RocksDB would start empty, or without the latest events."""
    missing = None
    if "CURRENT" not in names:
        missing = "CURRENT"
    elif (manifest := (directory / "CURRENT").read_text(errors="replace").strip()) not in names:
        missing = manifest or "the content of CURRENT"
    elif not any(name.endswith(".log") for name in names):
        missing = "the write-ahead log"
    if missing:
        raise StoreCorrupt(f"{directory} is damaged, {missing} is missing: restore the store from a backup")


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
