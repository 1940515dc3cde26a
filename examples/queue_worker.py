"""A server, and a worker that pulls due events from one of its queues.

The server is a separate process, started here with `everbell serve`; the worker could run on any machine that reaches
it. The handler refuses one event permanently, so that event is dead, with the reason; all others are handled.

    python examples/queue_worker.py
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everbell import App, AsyncClient, Occurrence, Refuse, Worker

MAILS = ("ada@shop.example", "nobody", "grace@shop.example")


@contextmanager
def server() -> Iterator[str]:
    """Run a server until the end of the block, and yield its URL."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory, "ready")
        options = ["--store", f"rocksdb:{directory}/data", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
        process = subprocess.Popen([sys.executable, "-m", "everbell", "serve", *options, "--log-level", "warning"])
        try:
            while not ready.exists() or not ready.read_text().endswith("\n"):
                try:
                    raise SystemExit(f"the server ended with code {process.wait(timeout=0.05)}")
                except subprocess.TimeoutExpired:
                    pass
            yield ready.read_text().strip()
        finally:
            process.terminate()
            process.wait()


async def work(url: str) -> None:
    app = App()
    settled: list[str] = []

    @app.on("mail")
    async def send(event: Occurrence) -> None:
        to = event.payload["to"]
        settled.append(to)
        if len(settled) == len(MAILS):
            worker.stop()
        if "@" not in to:
            raise Refuse(f"{to} is not an address")
        print(f"worker: mail to {to}")

    async with AsyncClient(url) as client:
        for number, to in enumerate(MAILS):
            await client.schedule({"to": to}, to="queue:mail", in_="200ms", id=f"mail-{number}")
        worker = Worker(app, client)
        await worker.run()
        print(f"handled {worker.handled}, failed {worker.failed}")
        async for event in client.dead():
            print(f"dead: {event.id}, {event.reason}")


if __name__ == "__main__":
    with server() as address:
        asyncio.run(work(address))
