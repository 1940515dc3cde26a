"""The directories, servers and partner processes of a measurement, all of them removed at its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from everbell.bench.dialogue import BenchFailed, Partner
from everbell.bench.plans import LoadPlan
from everbell.bench.usage import Usage, family_of, usage_of

START_S_MAX = 60.0
STOP_S_MAX = 20.0
_LOOK_S = 0.005


class Server:
    """`everbell serve` on a free loopback port."""

    def __init__(
        self, directory: Path, gateways: int, config: str, store: str, log: str, options: Sequence[str]
    ) -> None:
        self._ready = directory / "ready"
        self._log = directory / "log"
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "everbell", "serve"]
        command += ["--listen", "127.0.0.1:0", "--ready-file", str(self._ready), "--gateways", str(gateways), *options]
        if config:
            (directory / "config.toml").write_text(config)
            command += ["--config", str(directory / "config.toml")]
        with self._log.open("ab") as lines:
            # In the environment, because a URL may contain a password.
            environment = _quiet_environment() | {"EVERBELL_STORE": store or f"rocksdb:{directory / 'data'}"}
            environment |= {"EVERBELL_LOG": log} if log else {}
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter with a module of ours: no shell, no user's words
                command, stdin=subprocess.DEVNULL, stdout=lines, stderr=lines, env=environment
            )

    def wait_until_ready(self) -> int:
        """The server's port. Raises `BenchFailed` if it does not start."""
        waiting = threading.Event()
        for _ in range(int(START_S_MAX / _LOOK_S)):
            if self._ready.exists() and (url := self._ready.read_text().strip()):
                return int(url.rpartition(":")[2])
            if self.process.poll() is not None:
                break
            waiting.wait(_LOOK_S)
        raise BenchFailed(f"the server did not start: {self.last_words()}")

    def last_words(self) -> str:
        """The end of the server's log."""
        return "; ".join(self._log.read_text(errors="replace").strip().splitlines()[-3:]) or "its log is empty"

    def usage(self) -> Usage:
        """The resources of the server and its gateways."""
        if self.process.poll() is not None:
            raise BenchFailed(f"the server ended with code {self.process.returncode}: {self.last_words()}")
        return usage_of(family_of(self.process.pid))

    def kill(self) -> None:
        """Kill the server; its gateways notice and end."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Stop the server, and kill it if it does not stop in time."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()


class BenchStage:
    """Everything that one measurement starts; leaving the block ends and removes it, the last first."""

    def __init__(self) -> None:
        self._exits = ExitStack()
        self._servers: list[Server] = []

    def directory(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="everbell-bench-"))
        self._exits.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def server(
        self,
        directory: Path | None = None,
        *,
        gateways: int = 0,
        config: str = "",
        store: str = "",
        log: str = "",
        options: Sequence[str] = (),
    ) -> tuple[Server, int]:
        """A server that is ready, and its port; on RocksDB by default."""
        server = Server(directory or self.directory(), gateways, config, store, log, options)
        self._exits.callback(server.end)
        self._servers.append(server)
        return server, server.wait_until_ready()

    def partner(self, module: str, plan: object) -> Partner:
        return self._exits.enter_context(Partner(module, plan))

    def load(self, plan: LoadPlan) -> Partner:
        """A load generator that is ready."""
        load = self.partner("everbell.bench.load", plan)
        load.hear()
        return load

    def __enter__(self) -> BenchStage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, BenchFailed):
            words = "; ".join(server.last_words() for server in self._servers)
            self._exits.close()
            raise BenchFailed(f"{error}; the server's last words: {words}" if words else str(error)) from error
        self._exits.close()


def _quiet_environment() -> dict[str, str]:
    """The environment without Everbell's settings of the user."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVERBELL_")}
