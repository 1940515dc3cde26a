"""One machine: `everbell serve` on a store of its own, which a test kills, traces, fills up and starts again.

No event tells the progress of another process, so `until` checks a condition repeatedly, and gives up after a while.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.acceptance.processes import quiet_environment
from tests.previous import NEW, Version

PATIENCE_S = 60.0
"""How long a test waits for a condition. A timeout is a failure of the condition, not a measure of speed."""
_LOOK_S = 0.01

Found = TypeVar("Found")


def now_ms() -> int:
    """The wall clock, in the unit of due times."""
    return time.time_ns() // 1_000_000


def until(look: Callable[[], Found], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> Found:
    """Call `look` until it returns something true, and return that."""
    deadline = time.monotonic() + patience_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still not: {what if isinstance(what, str) else what()}")
        time.sleep(_LOOK_S)
    return found


@dataclass(frozen=True)
class Answer:
    """A response of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Machine:
    """A server that can be started many times; each time it gets a free port."""

    def __init__(self, folder: Path, *options: str, store: Path | None = None, config: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = store or folder / "store"
        self.url = ""
        self.starts = 0
        self.version: Version = NEW
        """The version that runs at the next start."""
        self.token = ""
        """The access key that every request sends."""
        self._folder = folder
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        if config:
            (folder / "everbell.toml").write_text(config)
            self._options += ["--config", str(folder / "everbell.toml")]

    def start(self, *wrapper: str) -> None:
        """Start the server, and wait until it is ready."""
        assert self.tries_to_start(*wrapper), f"ended with {self.code}\n{self.log}"

    def tries_to_start(self, *wrapper: str) -> bool:
        """Start the server, and wait until it is ready or has ended; returns whether it is ready."""
        self.begin(*wrapper)
        return self._becomes_ready()

    def await_ready(self) -> None:
        """Wait until the server is ready, after `begin`."""
        assert self._becomes_ready(), f"ended with {self.code}\n{self.log}"

    def _becomes_ready(self) -> bool:
        until(lambda: self._is_ready() or self.ended, lambda: f"ready\n{self.log}")
        if self._is_ready():
            self.url = self._ready.read_text().strip()
        return self._is_ready()

    def begin(self, *wrapper: str) -> None:
        """Start the server; `wrapper` is a command that runs it and ends with the same exit code."""
        self.starts += 1
        command = [
            *wrapper,
            *self.version.command,
            "serve",
            "--store",
            f"rocksdb:{self.store}",
            "--listen",
            "127.0.0.1:0",
        ]
        command += ["--ready-file", str(self._ready), *self._options]
        with self._log.open("wb") as log:
            environment = quiet_environment() | self.version.environment
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """The log since the last start."""
        return self._log.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def code(self) -> int:
        """The exit code; waits for the end of the process."""
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Ask the process to end; returns its exit code."""
        self.process.terminate()
        return self.code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def rss_bytes(self) -> int:
        """The resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4_096

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request on a connection of its own. A body that is not bytes is sent as JSON."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body)
            access = {"authorization": f"Bearer {self.token}"} if self.token else {}
            connection.request(method, path, content, {"content-type": "application/json", **access, **(headers or {})})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())
        finally:
            connection.close()

    def schedule(self, to: str, payload: object = None, tenant: str = "shop", **fields: object) -> str:
        """Schedule one event, due now unless `fields` have a time; returns its id."""
        if "at" not in fields and "in" not in fields:
            fields["in"] = 0
        answer = self.call("POST", f"/v1/tenants/{tenant}/events", {"to": to, "payload": payload, **fields})
        assert answer.status in (200, 201), answer
        return str(answer.json["id"])

    def schedule_many(self, events: list[dict[str, object]], tenant: str = "shop") -> list[str]:
        """Schedule many events in one request; returns their ids."""
        answer = self.call("POST", f"/v1/tenants/{tenant}/events/batch", events)
        assert answer.status == 201, answer
        return list(answer.json["ids"])

    def event(self, event_id: str, tenant: str = "shop") -> dict[str, Any]:
        """The current state of an event."""
        answer = self.call("GET", f"/v1/tenants/{tenant}/events/{event_id}")
        assert answer.status == 200, answer
        return dict(answer.json)

    def until_status(self, event_id: str, status: str, tenant: str = "shop") -> dict[str, Any]:
        """Wait until an event has a status; returns the event."""
        until(
            lambda: self.event(event_id, tenant)["status"] == status,
            lambda: f"{event_id} {status}: {self.event(event_id, tenant)}",
        )
        return self.event(event_id, tenant)

    def metric(self, name: str) -> int:
        """The value of one metric."""
        text = self.call("GET", "/metrics").body.decode()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"everbell_{name} "))

    def count(self, tenant: str, status: str) -> int:
        """The number of events of a tenant with a status."""
        total, cursor = 0, ""
        while True:
            path = f"/v1/tenants/{tenant}/events?status={status}&limit=1000"
            page = self.call("GET", path + (f"&cursor={cursor}" if cursor else "")).json
            total += len(page["events"])
            cursor = page.get("cursor", "")
            if not cursor:
                return total

    @property
    def _ready(self) -> Path:
        # Each start has a file of its own, so that an old file is never taken for a new one.
        return self._folder / f"ready-{self.starts}"

    @property
    def _log(self) -> Path:
        return self._folder / f"serve-{self.starts}.log"

    def _is_ready(self) -> bool:
        return self._ready.exists() and self._ready.read_text().endswith("\n")

    def __enter__(self) -> Machine:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
