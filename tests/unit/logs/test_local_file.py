from __future__ import annotations

import os
from itertools import accumulate
from pathlib import Path

import pytest

from everbell.errors import LogBroken, LogCorrupt, LogUnusable
from everbell.logs.local_file import LocalFile
from everbell.logs.port import LogEntry, Snapshot

ENTRIES = [
    LogEntry(1, b"join a"),
    LogEntry(2, b""),
    LogEntry(3, b"a command with an \xebell in it"),
    LogEntry(4, bytes(100)),
]


def written(folder: Path, entries: list[LogEntry] = ENTRIES) -> Path:
    """A log with some entries, closed; returns the file of the entries."""
    file = LocalFile(folder)
    for entry in entries:
        file.append(entry)
    file.close()
    return folder / "entries"


def read(folder: Path) -> list[LogEntry]:
    file = LocalFile(folder)
    file.close()
    return file.entries


HEAD_BYTES, FRAME_BYTES = 31, 20
ENDS = list(accumulate([HEAD_BYTES, *(FRAME_BYTES + len(entry.data) for entry in ENTRIES)]))
"""Where the head ends, and where each frame ends."""


def test_entries_and_snapshot_come_back(tmp_path: Path) -> None:
    written(tmp_path)
    file = LocalFile(tmp_path)
    assert (file.trimmed, file.entries, file.snapshot) == (0, ENTRIES, None)
    file.save(Snapshot(3, b"state"))
    file.trim(2, ENTRIES[2:])
    file.append(LogEntry(5, b"five"))
    file.close()
    file = LocalFile(tmp_path)
    assert (file.trimmed, file.entries) == (2, [*ENTRIES[2:], LogEntry(5, b"five")])
    assert file.snapshot == Snapshot(3, b"state")
    file.close()


def test_a_torn_tail_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    assert len(whole) == ENDS[4]
    for length in range(ENDS[3], len(whole)):
        path.write_bytes(whole[:length])
        file = LocalFile(tmp_path)
        assert file.entries == ENTRIES[:3]
        file.append(LogEntry(4, b"another"))
        file.close()
        assert read(tmp_path) == [*ENTRIES[:3], LogEntry(4, b"another")]


@pytest.mark.parametrize("junk", [bytes(4_096), b"\xff" * 30, b"\xebell" * 9])
def test_a_tail_of_junk_is_cut_off(tmp_path: Path, junk: bytes) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + junk)
    assert read(tmp_path) == ENTRIES
    assert path.read_bytes() == whole


def test_an_entry_without_some_of_its_sectors_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path, [*ENTRIES, LogEntry(5, b"x" * 2_000)])
    whole = path.read_bytes()
    for lost in range(1_024, len(whole), 512):
        path.write_bytes(whole[:lost] + bytes(len(whole[lost : lost + 512])) + whole[lost + 512 :])
        assert read(tmp_path) == ENTRIES


def test_any_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    assert len(whole) == ENDS[4]
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises((LogCorrupt, LogUnusable)) as refused:
            LocalFile(tmp_path)
        assert str(path) in str(refused.value)
        assert path.stat().st_size == len(whole), "nothing is dropped"
    path.write_bytes(whole)
    assert read(tmp_path) == ENTRIES


def test_a_missing_piece_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: ENDS[1]] + whole[ENDS[2] :])
    with pytest.raises(LogCorrupt, match="entry 3 is where 2 should be"):
        LocalFile(tmp_path)


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    file = LocalFile(tmp_path)
    file.save(Snapshot(3, b"state"))
    file.close()
    path = tmp_path / "snapshot"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((LogCorrupt, LogUnusable)):
            LocalFile(tmp_path)
    path.write_bytes(whole[:10])
    with pytest.raises(LogCorrupt):
        LocalFile(tmp_path)


def test_entries_that_are_gone_are_damage_where_there_is_a_snapshot(tmp_path: Path) -> None:
    file = LocalFile(tmp_path)
    file.save(Snapshot(3, b"state"))
    file.close()
    (tmp_path / "entries").unlink()
    with pytest.raises(LogCorrupt, match="missing"):
        LocalFile(tmp_path)


def test_a_file_of_a_newer_version_is_not_called_damaged(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"everbell entries 1\n", b"everbell entries 2\n"))
    with pytest.raises(LogUnusable, match="newer"):
        LocalFile(tmp_path)


def test_a_temporary_file_left_by_a_crash_is_harmless(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "entries.new").write_bytes(b"half of")
    (tmp_path / "snapshot.new").write_bytes(b"half of")
    file = LocalFile(tmp_path)
    file.save(Snapshot(2, b"s"))
    file.trim(2, ENTRIES[2:])
    file.close()
    assert read(tmp_path) == ENTRIES[2:]


def test_only_one_process_can_open_the_log(tmp_path: Path) -> None:
    file = LocalFile(tmp_path)
    with pytest.raises(LogUnusable, match="in use"):
        LocalFile(tmp_path)
    file.close()
    LocalFile(tmp_path).close()


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LocalFile(tmp_path)
    file.append(ENTRIES[0])
    real = os.pwrite

    def half(fd: int, data: bytes, place: int) -> int:
        if len(data) > 5:
            return real(fd, data[:5], place)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        file.append(LogEntry(2, b"x"))
    monkeypatch.undo()
    file.append(LogEntry(2, b"y"))
    file.close()
    assert read(tmp_path) == [ENTRIES[0], LogEntry(2, b"y")]


def test_a_failed_sync_is_never_taken_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LocalFile(tmp_path)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LogBroken):
        file.append(LogEntry(1, b"x"))
    file.close()
