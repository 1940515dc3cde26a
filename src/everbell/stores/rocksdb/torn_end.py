"""The end of RocksDB's logs after a power failure, and damage that RocksDB would not notice.

After a power failure, the writes since the last fsync may be there in part, in any order. RocksDB accepts an
unfinished last record. But it refuses a record of which a sector is missing, and it silently skips a sector of zeros
together with the rest of its block, even if whole records follow. And it takes a wrong length near the end of a file
for an unfinished record, and silently drops all records behind it.

So Everbell looks at the logs before RocksDB does, and decides by two facts:

- The first row of every write (`SYNCED_KEY`) contains the sequence up to which an fsync had covered the log at that
  time. The first write of each log file is synced before the second. So a whole write behind a broken place tells
  whether that place was synced. If it was, it is damage, and the store is refused.
- A broken place without a missing sector is damage, too.

Any other broken place was never acknowledged: the log is cut there. Everything behind it is younger, and goes as well.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from everbell.core.torn import lacks_sectors
from everbell.errors import StoreCorrupt
from everbell.stores.rocksdb import keys
from everbell.stores.rocksdb.record_log import (
    BATCH_HEAD_BYTES,
    Append,
    Walk,
    ends_with_wrong_length,
    is_whole,
    whole_after,
)
from everbell.stores.rocksdb.rows import NUMBER_BYTES, read_number

_log = logging.getLogger("everbell.stores.rocksdb.store")

_MARK = bytes([1, len(keys.SYNCED_KEY)]) + keys.SYNCED_KEY + bytes([NUMBER_BYTES])
_MARK_START = BATCH_HEAD_BYTES
_MARK_END = _MARK_START + len(_MARK)


def check_logs(directory: Path, *, thoroughly: bool) -> bool:
    """Cut off what a power failure left incomplete; returns whether anything was cut. Raises `StoreCorrupt`.

    This follows the lengths of records. `thoroughly`: it also computes the checksums of the last records.
    """
    cut = _check_manifest(directory / (directory / "CURRENT").read_text(errors="replace").strip(), thoroughly)
    logs = sorted(directory.glob("*.log"), key=lambda path: int(path.stem) if path.stem.isdecimal() else 0)
    return _check_write_ahead(logs, thoroughly) or cut


def _check_write_ahead(logs: Sequence[Path], thoroughly: bool) -> bool:
    sequence = 0  # Of the next row, as far as it is known.
    for number, path in enumerate(logs):
        content = path.read_bytes()
        walk = Walk(content)
        unsynced: list[Append] = []
        for entry in walk.entries():
            if 0 < sequence < entry.sequence and (_synced_before(entry) or sequence) < sequence:
                # The file before lost its last writes, and nothing of them is left. This one was not synced either.
                _cut_all(logs[number:])
                return True
            sequence = entry.next_sequence
            if thoroughly:
                if synced := _synced_before(entry):
                    unsynced = [each for each in unsynced if each.sequence > synced]
                unsynced.append(entry)
        broken = next((entry for entry in unsynced if not is_whole(content, entry)), None)
        if broken is None and walk.broken_at is None:
            continue
        if broken is not None:
            sequence = broken.sequence
        younger = logs[number + 1 :]
        place = walk.place if broken is None else broken.start
        behind = [(content, place + 1), *((later.read_bytes(), 0) for later in younger)]
        _judge(path, content, walk, broken, _is_synced(behind, sequence))
        _cut(path, place)
        _cut_all(younger)
        return True
    return False


def _check_manifest(path: Path, thoroughly: bool) -> bool:
    content = path.read_bytes()
    walk = Walk(content)
    last = deque(walk.entries(), maxlen=1)
    broken = last[0] if thoroughly and last and not is_whole(content, last[0]) else None
    if broken is None and walk.broken_at is None:
        return False
    # Every entry of a manifest is synced before the next one is written.
    _judge(path, content, walk, broken, broken is None and any(True for _ in whole_after(content, walk.place + 1)))
    if broken is None and walk.runs_out:
        return False
    _cut(path, walk.place if broken is None else broken.start)
    return True


def _judge(path: Path, content: bytes, walk: Walk, broken: Append | None, is_synced: bool) -> None:
    """Raise `StoreCorrupt` unless a power failure explains the broken place."""
    if broken is not None:
        place, is_torn = broken.start, lacks_sectors(content, broken.start, broken.end)
    elif walk.runs_out:
        place, is_torn = walk.place, not ends_with_wrong_length(content, walk.broken_at or 0)
    else:
        place, is_torn = walk.place, lacks_sectors(content, walk.place, len(content))
    if is_synced or not is_torn:
        raise StoreCorrupt(f"{path} is damaged at byte {place}: restore the store from a backup")


def _is_synced(behind: Iterable[tuple[bytes, int]], sequence: int) -> bool:
    """Whether a whole write behind a broken place says that the place was synced."""
    for content, start in behind:
        for entry in whole_after(content, start):
            synced = _synced_before(entry)
            # Earlier versions wrote no marks: then the place counts as synced. So does an unknown sequence.
            return synced is None or sequence == 0 or synced >= sequence
    return False


def _synced_before(entry: Append) -> int | None:
    """The sequence that was synced when a write was made; None if the write does not say so."""
    if entry.opening[_MARK_START:_MARK_END] != _MARK or len(entry.opening) < _MARK_END + NUMBER_BYTES:
        return None
    return read_number(entry.opening[_MARK_END : _MARK_END + NUMBER_BYTES])


def _cut_all(logs: Sequence[Path]) -> None:
    for path in logs:
        _cut(path, 0)


def _cut(path: Path, place: int) -> None:
    size = path.stat().st_size
    if size == place:
        return
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, place)
        os.fsync(fd)
    finally:
        os.close(fd)
    _log.warning(
        "%s: the last %d bytes were cut off; a power failure left them incomplete, and they were never acknowledged",
        path,
        size - place,
    )
