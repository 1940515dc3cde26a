"""The receiver of the demo: an HTTP server on loopback that keeps the deliveries, and can fail the first ones."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from everbell.clock import Clock
from everbell.core.time import parse_instant
from everbell.errors import Unreachable

ARRIVAL_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery, and the status that it was answered with."""

    payload: Any
    attempt: int
    late_ms: int
    status: int


class DemoReceiver:
    """Answers 200, after as many 503 as `failures` says."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/bell"
        self.failures = 0
        self._arrivals: queue.Queue[Arrival] = queue.Queue()

    def take(self, payload: Any, attempt: int, late_ms: int) -> int:
        """Note a delivery; returns the status to answer with."""
        status = 200
        if self.failures:
            self.failures -= 1
            status = 503
        self._arrivals.put(Arrival(payload, attempt, late_ms, status))
        return status

    def next(self) -> Arrival:
        """The next delivery. Raises `Unreachable` when none comes."""
        try:
            return self._arrivals.get(timeout=ARRIVAL_S_MAX)
        except queue.Empty:
            raise Unreachable(f"nothing was delivered within {ARRIVAL_S_MAX:g} s; is 127.0.0.1 blocked?") from None

    def is_quiet(self) -> bool:
        """Whether `next` has returned all deliveries."""
        return self._arrivals.empty()


@contextmanager
def running_receiver(clock: Clock) -> Iterator[DemoReceiver]:
    """A receiver on a free port, until the end of the block."""

    class DemoHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            now = clock.now()
            payload = json.loads(self.rfile.read(int(self.headers["content-length"])))
            attempt, due = int(self.headers["everbell-attempt"]), parse_instant(self.headers["everbell-due"])
            self.send_response(receiver.take(payload, attempt, now - due))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), DemoHandler) as server:
        receiver = DemoReceiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, name="everbell-demo-receiver", daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
