"""`python -m tests.acceptance.page_figures`: what the operations page costs a real server with many pending events.

It measures in a real Chromium the first paint and the bytes of the page, the CPU time of a page of 100 events, and the
CPU time of the server while ten viewers look at the overview. The CPU time of the idle server is measured first, and
subtracted. Options: `--pending` (10,000,000), `--viewers` (10), `--seconds` (60) of looking.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.request import urlopen

from playwright.sync_api import Browser

from everbell.bench.scene import HOUR_MS, batches, load_plan, now_ms, send
from everbell.bench.stage import BenchStage, Server
from tests.acceptance.browser import chromium, tab_of

TENANT = "shop"
WEEK_MS = 168 * HOUR_MS
LOADERS = 4
SETTLE_S = 20
"""The first draw of a tab asks for everything, and the server may still be busy with the events that came in."""
PAGES = 200

_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
_BYTES = """() => performance.getEntries().reduce((sum, each) => sum + (each.transferSize ?? 0), 0)"""


def main() -> None:
    """Measure, and print each figure as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    with BenchStage() as stage, chromium() as browser:
        server, port = stage.server()
        _fill(stage, port, options.pending)
        url = f"http://127.0.0.1:{port}"
        _settle(server)
        _tell(f"page of 100 events: {_page_ms(server, url):.2f} ms of server CPU")
        for paint_ms, transferred in _first_looks(browser, url):
            _tell(f"first paint: {paint_ms:.0f} ms, {transferred / 1_000:.1f} kB in all")
        idle = _cpu_share(server, options.seconds)
        _tell(f"idle server: {idle:.2%} of a core")
        with _viewers(browser, url, options.viewers):
            time.sleep(SETTLE_S)
            watched = _cpu_share(server, options.seconds)
        _tell(f"{options.viewers} viewers of the overview: {watched - idle:.2%} of a core more")


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fill(stage: BenchStage, port: int, pending: int) -> None:
    """Schedule events over a week from now on, over HTTP."""
    count, size = batches(pending)
    plan = load_plan(
        port, "queue:mail", size, LOADERS, tenant=TENANT, due_from=now_ms() + HOUR_MS // 2, due_span_ms=WEEK_MS
    )
    sent = send(stage.load(plan), count, lambda done: None)
    _tell(f"{sent.events:,} events scheduled at {sent.rate:,.0f}/s")


def _settle(server: Server) -> None:
    """Wait until the store has compacted: until a second costs less than a twentieth of one."""
    for _ in range(120):
        if _cpu_share(server, 1) < 0.05:
            return


def _cpu_share(server: Server, seconds: float) -> float:
    before, began = server.usage().cpu_s, time.perf_counter()
    time.sleep(seconds)
    return (server.usage().cpu_s - before) / (time.perf_counter() - began)


def _page_ms(server: Server, url: str) -> float:
    before = server.usage().cpu_s
    for _ in range(PAGES):
        with urlopen(f"{url}/v1/tenants/{TENANT}/events?limit=100") as response:
            response.read()
    return (server.usage().cpu_s - before) * 1_000 / PAGES


def _first_looks(browser: Browser, url: str) -> Iterator[tuple[float, int]]:
    """Each look is that of a browser that never saw the page."""
    for _ in range(5):
        with tab_of(browser, url) as tab:
            tab.open("overview")
            yield tab.page.evaluate(_PAINT), tab.page.evaluate(_BYTES)


@contextmanager
def _viewers(browser: Browser, url: str, count: int) -> Iterator[None]:
    with ExitStack() as tabs:
        for _ in range(count):
            tabs.enter_context(tab_of(browser, url)).open("overview")
        yield


if __name__ == "__main__":
    main()
