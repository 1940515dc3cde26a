"""Real processes for the acceptance tests: servers, commands, workers. The tests wait for events, and never sleep."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

EVERBELL = (sys.executable, "-m", "everbell")
PATIENCE_S = 30
"""How long a test waits for an event before it fails."""


def quiet_environment() -> dict[str, str]:
    """The environment without the settings of the user who runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVERBELL_")}


class ServerProcess:
    """`everbell serve`, which reports through a named pipe that it is ready."""

    def __init__(self, folder: Path, *options: str, store: str = "memory:", port: int = 0) -> None:
        self._ready = folder / "ready"
        self._log = folder / "serve.log"
        self._options = options
        self._store = store
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Start the server, or start it again at the same address."""
        self._ready.unlink(missing_ok=True)
        os.mkfifo(self._ready)
        reading = os.open(self._ready, os.O_RDONLY | os.O_NONBLOCK)
        command = [*EVERBELL, "serve", "--store", self._store, "--listen", f"127.0.0.1:{self._port}"]
        command += ["--ready-file", str(self._ready), *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=quiet_environment())
        try:
            assert select.select([reading], [], [], PATIENCE_S)[0], self.log
            self.url = os.read(reading, 1_000).decode().strip()
        finally:
            os.close(reading)
        self._port = int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        """Stop the server as an administrator would; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


class Finished:
    """A command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self) -> str:
        return f"exit {self.code}\nout: {self.out}\nerr: {self.err}"


class CommandLine:
    """`everbell …` as a user types it, for one server."""

    def __init__(self, url: str | None = None) -> None:
        self._environment = quiet_environment() | ({} if url is None else {"EVERBELL_SERVER": url})

    def __call__(self, *arguments: str, stdin: str = "") -> Finished:
        """Run a command to its end."""
        done = subprocess.run(
            [*EVERBELL, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=self._environment,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def begin(self, *arguments: str, folder: Path | None = None) -> RunningCommand:
        """Start a command that keeps running."""
        return RunningCommand([*EVERBELL, *arguments], self._environment, folder)


class RunningCommand:
    """A command that is running; its output is read line by line."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], folder: Path | None) -> None:
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            env=environment | {"PYTHONUNBUFFERED": "1"},
            cwd=folder,
        )
        # A thread reads the lines: a line may already be in a buffer, where waiting for the pipe would not find it.
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def line(self) -> str:
        """The next line of the output."""
        return self._lines.get(timeout=PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def errors(self) -> str:
        """The standard error until now."""
        # The command writes at the place where this file object reads, so the place must stay as it is.
        return os.pread(self._err.fileno(), 1 << 20, 0).decode()

    def end(self) -> Finished:
        """Wait for the end of the command."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._err.seek(0)
        rest = [self._lines.get_nowait() for _ in range(self._lines.qsize())]
        return Finished(code, "".join(line + "\n" for line in rest), self._err.read())

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            for line in out:
                self._lines.put(line.rstrip("\n"))

    def __enter__(self) -> RunningCommand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._err.close()
