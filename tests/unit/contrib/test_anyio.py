"""Everbell under anyio, on the loops of asyncio and trio."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from everbell import Everbell, EverbellError
from everbell.contrib.anyio import AnyioClient

ANSWER = b'{"id": "order-17", "at": "2030-01-01T00:00:00Z", "status": "scheduled", "version": 1, "created": true}'


class Scripted(BaseHTTPRequestHandler):
    """Answers 503 once, then as if the event was stored."""

    seen: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append(body)
        status, answer = (503, b"{}") if len(self.seen) == 1 else (201, ANSWER)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Scripted.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_client_works_on_both_loops_and_retries(url: str, loop: str) -> None:
    async def main() -> str:
        async with AnyioClient(url, backoff=lambda failures: 0.0) as client:
            return (await client.schedule({"order": 17}, to="queue:mail", in_="20m", id="order-17")).id

    assert anyio.run(main, backend=loop) == "order-17"
    assert len(Scripted.seen) == 2


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_unreachable_server_is_an_error_of_everbell(loop: str) -> None:
    async def main() -> None:
        async with AnyioClient("http://127.0.0.1:1", attempts_max=1) as client:
            await client.get("a")

    with pytest.raises(EverbellError, match="refused"):
        anyio.run(main, backend=loop)


def test_the_library_runs_in_a_task_group_of_anyio() -> None:
    async def main() -> int:
        async with Everbell("memory:") as bell, anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(_schedule, bell, number)
        return 3

    async def _schedule(bell: Everbell, number: int) -> None:
        with anyio.fail_after(10):
            await bell.schedule(number, to="queue:a", in_="1h")

    assert anyio.run(main) == 3
