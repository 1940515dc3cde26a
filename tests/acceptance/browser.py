"""A real Chromium that looks at the operations page, and notes everything that a browser complains about.

Playwright drives the browser of the system. axe-core comes from npm (`make page-tools`); where it is missing, a test
that needs it is skipped, and says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".build/npm/node_modules/axe-core/axe.min.js"
PICTURES = ROOT / ".build/pages"
WIDTHS = {400: 800, 1280: 860, 2560: 1300}
"""The widths of the pictures, each with the height of the window."""

PATIENCE_MS = 20_000

_WATCH_POLICY = """
window.violations = [];
const note = ({ violatedDirective, blockedURI }) => violations.push(`${violatedDirective} ${blockedURI}`);
addEventListener("securitypolicyviolation", note);
"""
_FIND_FLAWS = """
async () => {
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
  const { violations } = await axe.run(document, { runOnly: { type: "tag", values: tags } });
  const told = ({ target, failureSummary }) => `${target} ${failureSummary}`;
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(told).join(" | ")}`);
}
"""


class Tab:
    """A tab that shows the page of one server."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.url = url
        self.complaints: list[str] = []
        """What the browser and the scripts of the page complained about."""
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", lambda line: self._note(line.type, line.text))

    def _note(self, kind: str, text: str) -> None:
        # A refused or missing path is an answer that the page shows. A node that is down is the subject of a test.
        if kind == "error" and "Failed to load resource" not in text:
            self.complaints.append(text)

    def open(self, address: str) -> None:
        """Open an address of the page, and wait for its content."""
        self.page.goto(f"{self.url}/#/{address}")
        expect(self.page.locator("main h1, main .empty").first).to_be_visible()

    def find(self, selector: str, text: str | None = None) -> Locator:
        return self.page.locator(selector, has_text=text).first

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True).first

    def click(self, name: str) -> None:
        """Click the button, link or row action with this name."""
        self.button(name).click()

    def fill(self, field: str, text: str) -> None:
        """Fill in a field of the open dialog or form, by its name."""
        self.page.locator(f"dialog[open] [name={field}], main [name={field}]").last.fill(text)

    def sees(self, text: str, where: str = "body") -> None:
        """Wait until a text is visible."""
        expect(self.page.locator(where)).to_contain_text(text)

    def misses(self, text: str, where: str = "main") -> None:
        """Wait until a text is not there any more."""
        expect(self.page.locator(where)).not_to_contain_text(text)

    def is_clean(self) -> None:
        """Fail if the browser complained, or the content security policy refused something."""
        violations: list[str] = self.page.evaluate("() => window.violations ?? []")
        assert self.complaints + violations == [], self.complaints + violations

    def flaws(self) -> list[str]:
        """The findings of axe-core."""
        found: list[str] = self.page.evaluate(_FIND_FLAWS)
        return found

    def picture(self, name: str, width: int) -> None:
        """Keep a picture of the page at a width, and fail if the page is wider than the window."""
        self.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        # The second frame is drawn for the new width.
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}-{width}.png")
        wide: int = self.page.evaluate("() => document.scrollingElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} pixels wide in a window of {width}"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of the system. Where there is none, the test is skipped, unless the machine must have everything."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        missing = pytest.fail if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1" else pytest.skip
        missing("Chromium is not installed: make system installs it")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Continuous integration runs as root, and there Chromium's own sandbox does not start.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def tab_of(browser: Browser, url: str, *, theme: Any = "light", width: int = 1280) -> Iterator[Tab]:
    """A tab with a session of its own."""
    context = browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]}, color_scheme=theme, timezone_id="Europe/Berlin"
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_WATCH_POLICY)
    if AXE.exists():
        context.add_init_script(path=AXE)
    try:
        yield Tab(context, url)
    finally:
        context.close()
