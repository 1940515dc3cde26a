"""The operations page with access keys: signing in, read-only keys, keys of one tenant; and `--ui off`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from everbell import Client
from tests.acceptance.browser import chromium, tab_of
from tests.acceptance.processes import ServerProcess

TENANT_PAGES = ("overview", "events", "event/kept", "recurring", "dead", "keys", "queues", "targets", "tenant")
QUIET = {"Live", "Add filter", "Open the key", "Copy", "Sign out", "First page", "Next page"}
"""Buttons that change nothing on the server, beside those of a choice."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


class Guarded:
    """A server with an operator's key, and a reader's key of one tenant."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.url = server.url
        self.operator = (folder / "key").read_text().strip()
        with Client(server.url, tenant="shop", token=self.operator) as client:
            client.schedule({"n": 1}, id="kept", in_="1h", to="queue:mail", key="k")
            client.schedule({"n": 2}, id="again", to="queue:mail", repeat={"every": "1h"}, in_="1h")
            self.reader = client.create_key(["read"], note="the auditor").key


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with ServerProcess(folder, "--bootstrap-key", str(folder / "key")) as server:
        yield Guarded(server, folder)


def test_a_key_is_asked_for_and_kept_for_the_tab_only(browser: Browser, guarded: Guarded) -> None:
    with tab_of(browser, guarded.url) as tab:
        tab.page.goto(guarded.url)
        tab.sees("requires an access key")
        tab.fill("key", "evk_wrong")
        tab.click("Sign in")
        tab.sees("not valid here")
        tab.fill("key", guarded.operator)
        tab.click("Sign in")
        tab.sees("Overview", "h1")
        tab.page.reload()
        tab.sees("Overview", "h1")
        other = tab.page.context.new_page()
        other.goto(guarded.url)
        expect(other.locator("main")).to_contain_text("requires an access key")
        tab.click("Sign out")
        tab.sees("requires an access key")
        tab.is_clean()


def test_a_read_only_key_sees_no_actions_and_no_other_tenant(browser: Browser, guarded: Guarded) -> None:
    with tab_of(browser, guarded.url) as tab:
        tab.page.goto(guarded.url)
        tab.fill("key", guarded.reader)
        tab.click("Sign in")
        for address in TENANT_PAGES:
            tab.open(address)
            shown = tab.page.locator("button:visible:not([aria-pressed]):not(.icon)").all_inner_texts()
            assert {text.strip() for text in shown} <= QUIET, address
            assert tab.page.locator("main input[type=checkbox]").count() == 0, address
        names = tab.page.locator("nav .nav").all_inner_texts()
        assert not {"Cluster", "Tenants", "Access keys"} & {name.strip() for name in names}
        tab.open("schedule")
        tab.sees("may not schedule events")
        tab.is_clean()


def test_a_key_is_created_used_and_revoked(browser: Browser, guarded: Guarded) -> None:
    with tab_of(browser, guarded.url) as tab, tab_of(browser, guarded.url) as second:
        tab.page.goto(guarded.url)
        tab.fill("key", guarded.operator)
        tab.click("Sign in")
        tab.sees("Overview", "h1")
        tab.open("access")
        tab.click("Create a key…")
        tab.fill("tenant", "shop")
        tab.fill("note", "for a test")
        tab.click("Create it")
        text = tab.page.locator("dialog[open] pre").inner_text()
        tab.click("Close")
        second.page.goto(guarded.url)
        second.fill("key", text)
        second.click("Sign in")
        second.sees("Overview", "h1")
        row = tab.page.locator("tbody tr", has_text="for a test").first
        row.get_by_role("button", name="Revoke…").click()
        tab.click("Revoke it")
        tab.misses("for a test", "section:has-text('Keys') tbody >> nth=0")
        second.sees("requires an access key")
        tab.sees("revoke_key")
        tab.is_clean()


def test_the_page_can_be_switched_off(browser: Browser, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--ui", "off") as server, tab_of(browser, server.url) as tab:
        tab.page.goto(server.url)
        tab.sees("/openapi.json")
        answer = tab.page.goto(f"{server.url}/ui/app.js")
        assert answer is not None
        assert answer.status == 404
