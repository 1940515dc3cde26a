"""`make test`: every stage of the checks, and what came of each.

The acceptance tests wait for processes most of the time, and take two thirds of it: they run beside the other stages,
which compute. A stage that fails keeps none of the others from running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

IN_TURN = ("lint", "types", "unit", "conformance", "simulation")
BESIDE = "acceptance"
LOGS = Path(".build/test")

_SHOW_S = 0.2
_STOP_S = 60.0
_TERMINATED = 143


class Stage:
    """One stage on its way: a process that writes a log."""

    def __init__(self, name: str, command: Sequence[str], logs: Path) -> None:
        self.name = name
        self._log = logs / f"{name}.log"
        self._shown = 0
        self._started_s = time.time()
        with self._log.open("w") as log:
            # A session of its own, so that it can be stopped with all that it has started.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def follow(self, out: TextIO) -> None:
        """Show what it writes, from the first line, until it is over."""
        out.write(f"\n== {self.name}\n")
        is_over = False
        while not is_over:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SHOW_S)
                is_over = True
            with self._log.open("rb") as log:
                log.seek(self._shown)
                written = log.read()
            self._shown += len(written)
            out.write(written.decode(errors="replace"))
            out.flush()

    def stop(self) -> None:
        """End it as Ctrl-C would, if it is not over."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def failed(self) -> bool:
        """Whether it came to a bad end."""
        return self._process.returncode != 0

    def row(self) -> str:
        """What came of it, in a line: the last that it said."""
        took_s = self._log.stat().st_mtime - self._started_s
        said = [line.strip("= ") for line in self._log.read_text(errors="replace").splitlines()]
        last = next((line for line in reversed(said) if line and not line.startswith("make")), "")
        return f"{self.name:<12} {'FAILED' if self.failed else 'ok':<7} {took_s:4.0f}s  {last}"


def run(in_turn: Sequence[str], beside: str, command: Callable[[str], Sequence[str]], logs: Path, out: TextIO) -> bool:
    """Run all stages, show them one after the other, and sum up; returns whether all is well."""
    logs.mkdir(parents=True, exist_ok=True)
    longest = Stage(beside, command(beside), logs)
    stages: list[Stage] = []
    try:
        for name in in_turn:
            stages.append(Stage(name, command(name), logs))
            stages[-1].follow(out)
        stages.append(longest)
        longest.follow(out)
    finally:
        for stage in {*stages, longest}:
            stage.stop()
    out.write("\n== summary\n" + "".join(f"{stage.row()}\n" for stage in stages))
    return not any(stage.failed for stage in stages)


def _end(number: int, frame: FrameType | None) -> None:
    """Told to end: leave by an exception, so that the stages are stopped."""
    sys.exit(_TERMINATED)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    # In the background it may be ignored, and the stages would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(0 if run(IN_TURN, BESIDE, lambda name: ("make", name), LOGS, sys.stdout) else 1)
