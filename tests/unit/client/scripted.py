"""A server on loopback that gives scripted answers, in order, and keeps the requests."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import msgspec


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(frozen=True)
class Answer:
    """An answer; `then_close` closes the connection after it, without announcing that in a header."""

    status: int
    content: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    then_close: bool = False

    @property
    def body(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else msgspec.json.encode(self.content)


class HangUp:
    """Take the request, and close the connection instead of answering."""


class Silence:
    """Take the request, and answer only when the server is closed."""


def problem(status: int, slug: str, detail: str, **more: Any) -> Answer:
    """A problem as the server writes it."""
    headers = {name: str(more.pop(name)) for name in list(more) if name == "retry-after"}
    content = {"type": f"https://everbell.dev/problems/{slug}", "title": "T", "status": status, "detail": detail}
    return Answer(status, content | more, headers)


class ScriptedServer:
    """Runs in threads, so that both clients can talk to it."""

    def __init__(self, *script: Answer | HangUp | Silence) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self._script = list(script)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._closed_by_us = threading.Event()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                scripted.connections += 1
                super().setup()

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                action = scripted._next(Asked(self.command, self.path, headers, body))
                if isinstance(action, Answer):
                    self.send_response(action.status)
                    for name, value in action.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(action.body)))
                    self.end_headers()
                    self.wfile.write(action.body)
                    self.close_connection = action.then_close
                    return
                if isinstance(action, Silence):
                    scripted._over.wait()
                self.close_connection = True

            def finish(self) -> None:
                super().finish()
                self.connection.close()
                scripted._closed_by_us.set()

            def log_message(self, format: str, *args: object) -> None:
                pass

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # Some tests have clients that give up.

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def wait_closed(self) -> None:
        """Until a connection was closed on this side."""
        assert self._closed_by_us.wait(10)

    def _next(self, asked: Asked) -> Answer | HangUp | Silence:
        with self._lock:
            self.asked.append(asked)
            assert self._script, f"the script has no answer to {asked.method} {asked.target}"
            return self._script.pop(0)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
