"""`make test`: run every stage of the checks, and print the result of each.

The acceptance tests wait for processes most of the time, and take two thirds of the total: they run in parallel with
the
other stages, which use the CPU. A failed stage does not stop the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

IN_TURN = ("lint", "types", "unit", "conformance", "simulation")
BESIDE = "acceptance"
LOGS = Path(".build/test")

_SHOW_S = 0.2
_LOOK_S = 0.05
_STOP_S = 60.0
_TERMINATED = 143


class Stage:
    """One running stage: a process that writes a log."""

    def __init__(self, name: str, command: Sequence[str], logs: Path) -> None:
        self.name = name
        self._log = logs / f"{name}.log"
        self._shown = 0
        self._started_s = time.time()
        self._cpu_s: float | None = None
        with self._log.open("w") as log:
            # A session of its own, so that the stage can be stopped with all processes that it has started.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def follow(self, out: TextIO) -> None:
        """Show the output of the stage, from the first line, until the stage ends."""
        out.write(f"\n== {self.name}\n")
        is_over = False
        while not is_over:
            is_over = self._wait(_SHOW_S)
            with self._log.open("rb") as log:
                log.seek(self._shown)
                written = log.read()
            self._shown += len(written)
            out.write(written.decode(errors="replace"))
            out.flush()

    def stop(self) -> None:
        """End the stage as Ctrl-C would, if it still runs."""
        if not self._wait(0):
            os.killpg(self._process.pid, signal.SIGINT)
            if not self._wait(_STOP_S):
                os.killpg(self._process.pid, signal.SIGKILL)
                self._wait(_STOP_S)

    def _wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end of the stage; returns whether it has ended."""
        until_s = time.monotonic() + seconds
        while self._process.returncode is None:
            # wait4 also returns the CPU time of the stage and of all processes that it has waited for.
            pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._cpu_s = used.ru_utime + used.ru_stime
            elif time.monotonic() >= until_s:
                return False
            else:
                time.sleep(min(_LOOK_S, seconds))
        return True

    @property
    def failed(self) -> bool:
        """Whether the stage failed."""
        return self._process.returncode != 0

    def row(self) -> str:
        """The result of the stage, in one line that ends with the last line of its output."""
        took_s = self._log.stat().st_mtime - self._started_s
        said = [line.strip("= ") for line in self._log.read_text(errors="replace").splitlines()]
        last = next((line for line in reversed(said) if line and not line.startswith("make")), "")
        cpu = "" if self._cpu_s is None else f"{self._cpu_s:.0f}s CPU"
        return f"{self.name:<12} {'FAILED' if self.failed else 'ok':<7} {took_s:4.0f}s {cpu:>9}  {last}"


def run(in_turn: Sequence[str], beside: str, command: Callable[[str], Sequence[str]], logs: Path, out: TextIO) -> bool:
    """Run all stages, show them one after the other, and print a summary; returns whether all succeeded."""
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
    """On a signal to end, raise an exception, so that the stages are stopped."""
    sys.exit(_TERMINATED)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    # A process in the background may ignore SIGINT, and the stages would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(0 if run(IN_TURN, BESIDE, lambda name: ("make", name), LOGS, sys.stdout) else 1)
