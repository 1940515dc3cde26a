"""Several processes of one worker, kept alive by a parent that handles no events.

Rules:
- Each child is the parent's own command, started again, with a number and a pipe in its environment.
- A signal to the parent is passed on as SIGTERM. Children have a session of their own, so that Ctrl-C in a terminal
  reaches them once, by way of the parent. A second signal is passed on, too.
- When the parent is gone, its end of the pipe closes, and the children stop as on SIGTERM.
- A child that a signal killed is replaced. A child that ended with an error of its own ends the fleet with its code,
  because the next child would meet the same error. While files are watched, the fleet waits for a change instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger("everbell.worker")

CHILD_VARIABLE = "EVERBELL_WORKER_CHILD"
"""In the environment of a child: its number, and the file descriptor of the pipe from its parent."""

_WATCH_S = 0.5
_REPLACE_S = 1.0
_IGNORED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})


class WorkerFleet:
    """The children of a worker. `run` returns the exit code of the whole."""

    def __init__(self, processes: int, watched: Path | None = None) -> None:
        """With `watched`, all children are restarted when a Python file below this folder changes."""
        self._processes = processes
        self._watched = watched
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = False
        self._code = 0
        self._changed = asyncio.Event()
        self._alive, self._pipe = os.pipe()

    async def run(self) -> int:
        """Keep the children alive until a signal, or until one of them fails for good."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        watch = None if self._watched is None else loop.create_task(self._watch(self._watched))
        try:
            await asyncio.gather(*(self._keep(number) for number in range(1, self._processes + 1)))
        finally:
            if watch is not None:
                watch.cancel()
            os.close(self._alive)
            os.close(self._pipe)
        return self._code

    async def _keep(self, number: int) -> None:
        while True:
            changed = self._changed
            child = self._children[number] = await self._spawn(number)
            code = await child.wait()
            del self._children[number]
            if self._ends():
                self._code = max(self._code, abs(code))
                return
            if code > 0 and self._watched is not None:
                _log.error("process %d ended with code %d; waiting for a change of the files", number, code)
                await changed.wait()
            elif code > 0:
                self._code = code
                self._stop()
                return
            elif not changed.is_set():
                _log.error("process %d ended with code %d; starting another", number, code)
                await asyncio.sleep(_REPLACE_S)
            if self._ends():
                return

    def _ends(self) -> bool:
        return self._stopping

    async def _spawn(self, number: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *sys.orig_argv[1:],
            env=os.environ | {CHILD_VARIABLE: f"{number}:{self._alive}"},
            pass_fds=(self._alive,),
            start_new_session=True,
        )

    def _stop(self) -> None:
        self._stopping = True
        self._changed.set()
        self._terminate()

    def _terminate(self) -> None:
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.terminate()

    async def _watch(self, folder: Path) -> None:
        seen = await asyncio.to_thread(python_files, folder)
        while True:
            await asyncio.sleep(_WATCH_S)
            found = await asyncio.to_thread(python_files, folder)
            if found != seen:
                paths = sorted(path for path in {*seen, *found} if seen.get(path) != found.get(path))
                _log.info("%s changed: restarting", ", ".join(paths[:3]))
                seen = found
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
                self._terminate()


def python_files(folder: Path) -> Mapping[str, int]:
    """The Python files below a folder, with their times of change. Hidden folders and packages are left out."""
    found: dict[str, int] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _IGNORED_FOLDERS
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        ]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                with suppress(OSError):
                    found[os.path.relpath(path, folder)] = os.stat(path).st_mtime_ns
    return found
