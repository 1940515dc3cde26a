"""A server for the demo: a process of its own, in memory, on a free loopback port."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everbell.errors import Unreachable

START_S_MAX = 15.0
STOP_S_MAX = 10.0
_LOOK_S = 0.02


@contextmanager
def running_server() -> Iterator[str]:
    """The URL of a server that runs until the end of the block. Raises `Unreachable` when it does not start."""
    with tempfile.TemporaryDirectory(prefix="everbell-demo-") as folder:
        ready, log_path = Path(folder) / "ready", Path(folder) / "log"
        command = [sys.executable, "-m", "everbell", "serve", "--store", "memory:"]
        command += ["--listen", "127.0.0.1:0", "--ready-file", str(ready)]
        with log_path.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - this interpreter with a module of ours: no shell, no user's words
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                yield _url(process, ready, log_path)
            finally:
                _stop(process)


def _url(process: subprocess.Popen[bytes], ready: Path, log_path: Path) -> str:
    waiting = threading.Event()
    for _ in range(int(START_S_MAX / _LOOK_S)):
        if ready.exists() and (url := ready.read_text().strip()):
            return url
        if process.poll() is not None:
            break
        waiting.wait(_LOOK_S)
    lines = log_path.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    raise Unreachable(f"the server of the demo did not start: {lines[-1]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
