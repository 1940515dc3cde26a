"""A webhook to a receiver that is down for a moment: Everbell retries until the receiver accepts the event.

The receiver answers 503 twice and then 200. It recognises the event by `ce-id`, which is the same on every attempt, so
it could drop a duplicate. Sender and receiver run in this process, on loopback.

    python examples/webhook_with_retries.py
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from everbell import Everbell


class FlakyReceiver(BaseHTTPRequestHandler):
    """Answers 503 to the first two attempts."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        attempt = int(self.headers["everbell-attempt"])
        status = 503 if attempt < 3 else 200
        print(f"receiver: {self.headers['ce-id']}, attempt {attempt}, {body.decode()}: answering {status}")
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: `do_POST` already prints one line per request."""


@contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver until the end of the block, and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), FlakyReceiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hooks"
        server.shutdown()


async def main() -> None:
    with receiver() as url:
        async with Everbell("memory:") as bell:
            await bell.schedule(
                {"order": 17, "state": "paid"},
                to=url,
                in_="100ms",
                id="order-17-paid",
                retry={"max_attempts": 5, "backoff": "200ms"},
            )
            event = await bell.get("order-17-paid")
            while event.status != "delivered":
                await asyncio.sleep(0.05)
                event = await bell.get("order-17-paid")
        print(f"{event.id}: {event.status}")
        for attempt in event.attempts:
            print(f"  attempt {attempt.number}: {attempt.result}, {attempt.code}")


if __name__ == "__main__":
    asyncio.run(main())
