"""Power failures of a recorded program: at many moments, in many ways, each followed by a start on the files left over.

The right outcome: the store opens, and its state is one that it passed through: at or after the last acknowledged
step, and at or before the step that had begun. The same holds for the log.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from everbell.errors import EverbellError
from everbell.logs.local import LocalLog
from tests.power_loss.calls import Call, content, read, record
from tests.power_loss.disk import Disk, Image
from tests.power_loss.program import Script, open_store, store_view


@dataclass(frozen=True)
class Told:
    """The program had reported these steps at the moment of a power failure."""

    began: int = 0
    store: int = 0
    log: int = 0


@dataclass
class Recording:
    """A run of a program: its calls, and the state after each of its steps."""

    trace: Path
    disk: str
    acks: str
    states: list[tuple[str, int]]
    names: list[tuple[str, str]]
    entries: list[bytes] = field(default_factory=list)

    def moments(self) -> Iterator[tuple[Call, Disk, Told]]:
        """The disk after each beginning or end of a call that touches it, and the steps reported by then."""
        disk = Disk(self.disk)
        told = Told()
        told_on: int | None = None
        for call in read(self.trace):
            disk.play(call)
            if call.name == "openat" and call.result is not None and content(call.arguments[1]) == self.acks.encode():
                told_on = call.result
            if call.name == "write" and call.result is None and told_on == int(call.arguments[0]):
                told = _hear(told, content(call.arguments[1]).decode())
            yield call, disk, told


def record_program(folder: Path, seed: int, steps: int) -> Recording:
    """Run the program of a seed in a folder, and keep its calls."""
    disk, acks, trace = folder / "disk", folder / "acks", folder / "trace"
    disk.mkdir(parents=True)
    record([sys.executable, "-m", "tests.power_loss.program", str(disk), str(acks), str(seed), str(steps)], trace)
    script = Script(seed)
    states, entries = [script.state()], []
    for kind, argument in script.steps(steps):
        states.append(script.state())
        if kind == "append":
            entries.append(argument)
    return Recording(trace, str(disk), str(acks), states, script.names, entries)


def _hear(told: Told, line: str) -> Told:
    word, number = line.split()
    return Told(**{**vars(told), word: int(number)})


def lay_out(image: Image, folder: Path) -> None:
    """Write the files of an image into a folder that must not exist."""
    folder.mkdir()
    for path, data in image.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def judge(recording: Recording, image: Image, told: Told, folder: Path) -> str | None:
    """Start on the files of an image; returns the fault of the recovered state, or None."""
    # A folder of its own, because a store that was refused may be open until its memory is freed.
    folder = Path(mkdtemp(dir=folder)) / "image"
    lay_out(image, folder)
    try:
        return asyncio.run(_judge(recording, told, folder))
    except EverbellError as error:
        return f"the store or the log does not open: {error}"
    finally:
        shutil.rmtree(folder)


async def _judge(recording: Recording, told: Told, folder: Path) -> str | None:
    store = open_store(folder)
    try:
        view = await store_view(store, recording.names)
    finally:
        await store.close()
    log = LocalLog(folder / "store")
    try:
        # Entries that were trimmed are in the snapshot.
        snapshot = await log.load()
        kept = await log.read(0 if snapshot is None else snapshot.index, 10_000)
    finally:
        await log.close()
    last = kept[-1].index if kept else (0 if snapshot is None else snapshot.index)
    wrong = [entry.index for entry in kept if recording.entries[entry.index - 1] != entry.data]
    if wrong:
        return f"the log has other entries than were appended: {wrong}"
    if not recording.states[told.log][1] <= last <= recording.states[told.began][1]:
        return f"the log ends at {last}, and {recording.states[told.log][1]} was acknowledged"
    if view in {state for state, _ in recording.states[told.store : told.began + 1]}:
        return None
    earlier = [number for number, (state, _) in enumerate(recording.states) if state == view]
    return f"the store has {f'the state after step {earlier}' if earlier else 'a state that it never had'}; {told}"


def crash(recording: Recording, luck: Random, share: float, folder: Path) -> Iterator[tuple[int, str | None]]:
    """Fail at random moments, `share` of all; yields the number of the call and the verdict for each."""
    for call, disk, told in recording.moments():
        # A moment at which nothing is pending has one image only, and it is that of the moment before.
        if told.store and disk.pending and luck.random() < share:
            yield call.number, judge(recording, disk.survives(luck), told, folder)


def flip(recording: Recording, luck: Random, times: int, folder: Path) -> Iterator[tuple[str, str | None]]:
    """Flip one bit of each file of a killed program, many times; yields the file and the verdict for each."""
    image, told = _killed(recording)
    for path in sorted(image):
        bits = 8 * len(image[path])
        for bit in luck.sample(range(bits), min(times, bits)):
            damaged = bytearray(image[path])
            damaged[bit // 8] ^= 1 << bit % 8
            yield path, judge(recording, {**image, path: bytes(damaged)}, told, folder)


def _killed(recording: Recording) -> tuple[Image, Told]:
    """The files at a moment when every step that began was acknowledged, and the log and a table have rows."""
    for _, disk, told in recording.moments():
        if max(told.store, told.log) == told.began > len(recording.states) // 2:
            image = disk.written()
            if any(path.endswith(".log") and len(data) > 4_096 for path, data in image.items()):
                return image, Told(told.began, told.began, told.began)
    raise AssertionError("the program never came to rest")
