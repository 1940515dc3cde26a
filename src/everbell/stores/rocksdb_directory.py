"""The directory of a RocksDB store: is it ours, can we read it, is it whole?

RocksDB itself would put a database into anybody's directory, and makes a new, empty one where the file that names
the old one is lost. So a marker file says that the directory holds a store, since which format, and with how many
partitions:

- The marker is written under another name first, and gets its own when the database is there. A crash in between
  leaves a directory that is taken for a new one, for nothing was acknowledged yet.
- With the marker in place, the database has to be there: what is missing is reported and never made anew.
"""

from __future__ import annotations

import os
from errno import EDQUOT, ENOSPC
from pathlib import Path

import msgspec

from everbell.errors import StoreCorrupt, StoreFull, StoreUnusable

FORMAT = 1
"""What this version writes, and the highest that it reads."""
PARTITIONS_MAX = 0xFFFF

MARKER = "everbell.json"
_DRAFT = "everbell.json.new"
LOG_FOLDER = "cluster"
"""Where the log of a cluster of one machine lies (logs/local.py): not ours, but part of what is backed up."""
_NOT_OURS_BUT_HARMLESS = {"lost+found", LOG_FOLDER}


class Marker(msgspec.Struct, frozen=True):
    """What the marker file says."""

    format: int
    partitions: int
    created_at: int


def copy_log(directory: Path, copy: Path) -> None:
    """Copy the log that lies beside a store, if there is one. It is small, and its reader mends a torn end."""
    source, target = directory / LOG_FOLDER, copy / LOG_FOLDER
    if not source.exists():
        return
    target.mkdir()
    for file in sorted(source.iterdir()):
        with (target / file.name).open("xb") as written:
            written.write(file.read_bytes())
            written.flush()
            os.fsync(written.fileno())


def claim(directory: Path, partitions: int, created_at: int) -> tuple[Marker, bool]:
    """Make sure that the directory holds a store, or may become one. Returns its marker, and whether it is a new one.

    For a new one `settle` is to be called when the database is there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
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


def settle(directory: Path) -> None:
    """The database of a new store is there: from now on it has to be."""
    (directory / _DRAFT).rename(directory / MARKER)
    _sync(directory)


def mark(directory: Path, marker: Marker) -> None:
    """Put a marker beside a database that is whole."""
    _write(directory / MARKER, msgspec.json.encode(marker))
    _sync(directory)


def free_bytes(directory: Path) -> int:
    """How much room there is for us."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def log_bytes(directory: Path) -> int:
    """The size of the write-ahead log, which is what has to be written again when the database is opened."""
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def sync_above(directory: Path) -> None:
    """Make the name of the directory durable."""
    _sync(directory.absolute().parent)


def _draft(directory: Path, partitions: int, created_at: int) -> Marker:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise StoreUnusable(f"a store has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
    marker = Marker(FORMAT, partitions, created_at)
    _write(directory / _DRAFT, msgspec.json.encode(marker))
    _sync(directory)
    sync_above(directory)
    return marker


def _read_marker(directory: Path) -> Marker:
    try:
        marker = msgspec.json.decode((directory / MARKER).read_bytes(), type=Marker)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{directory / MARKER} cannot be read ({error}): restore the store from a backup") from error
    if marker.format > FORMAT:
        raise StoreUnusable(
            f"{directory} was written by a newer Everbell (format {marker.format}, this one reads up to {FORMAT}): "
            "install a newer version"
        )
    return marker


def _check_whole(directory: Path, names: set[str]) -> None:
    """The files without which RocksDB would begin anew, or without the latest events."""
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
