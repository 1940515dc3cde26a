"""A server of another project, run by the tests: private folder, private port, started, stopped, killed, frozen.

- The folder and the port belong to the object, so a server that was killed comes back with its data at its address.
- The port lies below those that the kernel gives to outgoing connections. A client that keeps trying to reach a stopped
  server could otherwise be given the server's own port, connect to itself, and keep the server from coming back.
- A server never outlives the process that started it: the kernel ends it with its parent. For the kernel, the parent is
  the thread that started the server, so one thread that lives as long as the process starts all servers.
- No event tells that another process is ready, so `start` asks repeatedly until the server answers. If the server ends
  instead, or does not answer in time, the error contains the end of its log.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 60.0
_LOOK_S = 0.02
_LOG_LINES = 40
_PORTS = range(15_000, 32_000)

_starter = ThreadPoolExecutor(1, "services")


class ServiceMissing(Exception):
    """The server is not installed here."""


class ServiceFailed(Exception):
    """The server did not do its task; contains the end of its log."""


class ServerProcess(ABC):
    """One server. A subclass defines the command and the check whether the server is ready."""

    name = "server"
    end_signal = signal.SIGTERM
    user: str | None = None
    """The user that runs the server, if the tests run as root."""
    patience_s = PATIENCE_S

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"everbell-{self.name}-"))
        self.port = free_port()
        self.log_file = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False
        self._frozen: list[int] = []

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of the server."""

    def prepare(self) -> None:  # noqa: B027 -- some servers need no preparation
        """Fill the folder, once."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that starts the server."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server answers."""

    def start(self) -> str:
        """Start the server, or start it again with the same data at the same address. Returns its URL."""
        if not self._prepared:
            self.prepare()
            self._prepared = True
        with self.log_file.open("ab") as log:
            self._process = _starter.submit(self._spawn, log.fileno()).result()
        self.until(self.is_ready, "ready")
        return self.url

    def _spawn(self, log: int) -> subprocess.Popen[bytes]:
        command = [*self.as_user(), "--pdeathsig", self.end_signal.name[3:], *self.command()]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
        )

    def stop(self) -> None:
        """Stop the server as an administrator would."""
        process = self._running()
        self.resume()
        process.send_signal(self.end_signal)
        try:
            process.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServiceFailed(f"{self.name} did not stop\n{self.log_end()}") from None
        self._process = None

    def kill(self) -> None:
        """`kill -9` the server and all its children: no process is left that could finish a write."""
        process = self._running()
        family = self._family()
        for pid in family:
            _send(pid, signal.SIGKILL)
        process.wait(self.patience_s)
        self._process = None
        self._frozen = []
        # The test cannot wait for grandchildren: the process table tells when they are gone.
        self.until(lambda: not any(map(_is_alive, family)), "gone")

    def restart(self) -> str:
        """Stop the server and start it again."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the server and all its children: connections stay open, and no process answers."""
        self._running()
        # The next look finds children that were started meanwhile; a frozen process starts none.
        while new := [pid for pid in self._family() if pid not in self._frozen]:
            for pid in new:
                _send(pid, signal.SIGSTOP)
            self._frozen += new

    def resume(self) -> None:
        """Let the server continue."""
        for pid in self._frozen:
            _send(pid, signal.SIGCONT)
        self._frozen = []

    def remove(self) -> None:
        """End the server, if it runs, and remove its data."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def log_end(self) -> str:
        """The last lines of the server's log."""
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return "\n".join(lines[-_LOG_LINES:]) or "(it logged nothing)"

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Run a program that comes with the server, as the server's user."""
        done = subprocess.run(
            [*self.as_user(), *command],
            capture_output=True,
            text=True,
            timeout=self.patience_s,
            cwd=self.folder,
            env=dict(os.environ) | dict(environment or {}),
            check=False,
        )
        if done.returncode:
            raise ServiceFailed(f"{command[0]} failed\n{done.stdout}{done.stderr}{self.log_end()}")

    def as_user(self) -> list[str]:
        """The prefix of a command that runs as the server's user."""
        if self.user is None or os.geteuid() != 0:
            return ["setpriv"]
        shutil.chown(self.folder, self.user, self.user)
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServiceFailed(f"{self.name} does not run")
        return self._process

    def _family(self) -> list[int]:
        first = self._running().pid
        return [first, *(pid for pid, parent in _parents() if parent == first)]

    def until(self, look: Callable[[], bool], what: str) -> None:
        """Call `look` repeatedly, until it returns true."""
        deadline = time.monotonic() + self.patience_s
        while not look():
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                happened = "ended instead" if ended else f"did not within {self.patience_s:.0f} s"
                raise ServiceFailed(
                    f"{self.name} should be {what} and {happened}; its log ends with:\n{self.log_end()}"
                )
            time.sleep(_LOOK_S)


def free_port() -> int:
    """A loopback port that was free a moment ago, below the ports of outgoing connections."""
    while True:
        number = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", number))
            except OSError:
                continue
        return number


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            yield int(entry), int(fields[1])


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    """State, parent, and more; empty when the process is gone."""
    try:
        # The name of the program is in parentheses, and may contain any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
