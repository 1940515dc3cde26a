"""`make pictures`: the pictures of the operations page in the documentation, taken from a real server under load."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from playwright.sync_api import expect

from everbell import App, AsyncClient, Occurrence, Worker
from tests.acceptance.browser import ROOT, chromium, tab_of
from tests.acceptance.page_scene import furnish
from tests.acceptance.processes import ServerProcess

FOLDER = ROOT / "docs/pictures"
LOAD_S = 150
"""Long enough for the charts of the recent past, which have a sample every ten seconds."""

PICTURES = {
    "overview": ("overview", "light"),
    "overview-dark": ("overview", "dark"),
    "events": ("events?tag=checkout", "light"),
    "event": ("event/pack-7", "light"),
    "recurring": ("recurring", "light"),
    "queues": ("queues", "dark"),
}


async def load(url: str) -> None:
    """Schedule and deliver some events a second, in a rhythm that a chart can show."""
    app, dice = App(), random.Random(3)

    @app.on("mail")
    async def handle(event: Occurrence) -> None:
        await asyncio.sleep(dice.random() / 50)

    async with AsyncClient(url, tenant="shop") as client:
        worker = Worker(app, client, concurrency=8)
        running = asyncio.create_task(worker.run())
        for second in range(LOAD_S):
            count = 20 + 15 * (second // 20 % 3) + dice.randrange(10)
            await client.schedule_many(
                {"payload": number, "in": f"{dice.randrange(4_000)}ms", "to": "queue:mail"} for number in range(count)
            )
            await asyncio.sleep(1)
        worker.stop()
        await running


def take(url: str) -> None:
    """Take every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, (address, theme) in PICTURES.items():
            with tab_of(browser, url, theme=theme) as tab:
                tab.open(address)
                expect(tab.page.locator("main")).not_to_contain_text("Loading")
                tab.page.evaluate(
                    "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
                )
                tab.page.screenshot(path=FOLDER / f"{name}.png")


def main() -> None:
    """Start a server, load it, take the pictures, and stop it."""
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), "--partitions", "64") as server:
        furnish(server.url)
        asyncio.run(load(server.url))
        take(server.url)


if __name__ == "__main__":
    main()
