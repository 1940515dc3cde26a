"""The operations page while time passes: live updates and their pauses, keys of the keyboard, charts, themes, payloads.

The browser's clock is installed by the test, so that minutes pass at once. A request that the page makes is noted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from everbell import Client
from tests.acceptance.browser import Tab, chromium, tab_of
from tests.acceptance.page_scene import furnish
from tests.acceptance.processes import ServerProcess

_SHOW = """(is) => {
  Object.defineProperty(document, "hidden", { get: () => is, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("live"), "--partitions", "16") as started:
        furnish(started.url, pending=60)
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, tenant="shop") as connected:
        yield connected


@pytest.fixture
def tab(browser: Browser, server: ServerProcess) -> Iterator[Tab]:
    with tab_of(browser, server.url) as opened:
        yield opened
        opened.is_clean()


@pytest.fixture
def calls(tab: Tab) -> list[str]:
    """The API requests of the page, while its clock is in the hands of the test."""
    made: list[str] = []
    tab.page.on("request", lambda request: made.append(request.url) if "/v1/" in request.url else None)
    tab.page.clock.install()
    return made


def during_a_minute(tab: Tab, calls: list[str]) -> list[str]:
    """The requests of a minute, of which each timer gets at least one turn."""
    calls.clear()
    for _ in range(6):
        tab.page.clock.run_for(MINUTE_MS // 6)
    # A request that has begun is noted before this one is answered.
    tab.page.evaluate("() => fetch('/healthz').then(() => null)")
    return [*calls]


def test_updates_stop_in_a_hidden_tab_and_go_on_when_it_is_shown(tab: Tab, calls: list[str], client: Client) -> None:
    tab.open("events?tag=hidden")
    tab.sees("No events match")
    assert during_a_minute(tab, calls), "a visible tab asks"
    tab.page.evaluate(_SHOW, True)
    during_a_minute(tab, calls)  # What was under way comes to its end.
    client.schedule(1, id="hidden-1", in_="1h", to="queue:mail", tags=["hidden"])
    assert during_a_minute(tab, calls) == []
    tab.page.evaluate(_SHOW, False)
    tab.sees("hidden-1")


@pytest.mark.parametrize("way", ["paused", "selected", "dialog"])
def test_updates_stop_while_they_would_disturb(tab: Tab, calls: list[str], client: Client, way: str) -> None:
    client.schedule(1, id=f"{way}-1", in_="1h", to="queue:mail", tags=[way])
    tab.open(f"events?tag={way}")
    tab.sees(f"{way}-1")
    if way == "paused":
        tab.click("Live")
        tab.sees("Paused", "header.top")
    else:
        tab.page.get_by_label(f"Select {way}-1").check()
    if way == "dialog":
        tab.click("Cancel…")
    during_a_minute(tab, calls)
    client.schedule(2, id=f"{way}-2", in_="2h", to="queue:mail", tags=[way])
    asked = [url for url in during_a_minute(tab, calls) if "/v1/cluster" not in url]
    assert asked == [], "only the health of the node is looked at"
    tab.misses(f"{way}-2", "tbody")
    if way == "dialog":
        tab.click("Back")
    if way == "paused":
        tab.click("Paused")
    else:
        tab.click("Clear the selection")
    tab.page.clock.run_for(5_000)
    tab.sees(f"{way}-2")


def test_a_chart_is_walked_with_the_keyboard_and_opens_the_events_of_a_time(tab: Tab) -> None:
    tab.open("overview")
    chart = tab.find("#future")
    expect(chart).to_be_visible()
    tab.page.locator("[aria-roledescription=chart]").first.focus()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.locator(".tip").first).to_be_visible()
    tab.page.keyboard.press("Enter")
    tab.sees("Events", "h1")
    tab.sees("due from", ".chips")
    tab.sees("due until", ".chips")


def test_the_overview_shows_all_tenants_or_one_and_the_last_day(tab: Tab) -> None:
    tab.open("overview")
    tab.sees("All tenants of this server")
    tab.click("shop")
    tab.misses("All tenants of this server")
    tab.click("24 h")
    expect(tab.button("24 h")).to_have_attribute("aria-pressed", "true")


def test_times_and_theme_are_kept_as_they_were_chosen(tab: Tab) -> None:
    tab.open("events?id_prefix=order-")
    tab.sees("in ", "tbody tr:first-child time")
    tab.page.get_by_label("How times are shown").select_option("utc")
    tab.sees("Z", "tbody tr:first-child time")
    tab.page.get_by_label("Use the dark theme").click()
    tab.page.reload()
    tab.sees("Z", "tbody tr:first-child time")
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
    tab.page.get_by_label("How times are shown").select_option("local")
    tab.sees("+0", "tbody tr:first-child time")


def test_the_page_is_used_without_a_mouse(tab: Tab) -> None:
    tab.open("events")
    tab.sees("order-", "tbody")
    tab.page.keyboard.press("Tab")
    expect(tab.page.locator(".skip")).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("main")).to_be_focused()
    tab.page.keyboard.press("n")
    tab.sees("Schedule an event", "h1")


def test_the_navigation_shows_its_place_on_a_narrow_screen(browser: Browser, server: ServerProcess) -> None:
    with tab_of(browser, server.url, width=400) as tab:
        tab.open("access")
        expect(tab.page.locator(".nav[aria-current]")).to_be_in_viewport()
        tab.open("events?tag=webhook")
        # Rows are blocks on a narrow screen: nothing is cut off at the side.
        wide = tab.page.evaluate(
            "() => Math.max(...[...document.querySelectorAll('.scroll')].map((e) => e.scrollWidth))"
        )
        assert wide <= 400
        tab.is_clean()


def test_a_policy_hides_payloads_from_the_page(tab: Tab, server: ServerProcess) -> None:
    with Client(server.url, tenant="clinic") as client:
        client.set_policy({"payloads": "hidden"})
        client.schedule({"diagnosis": "secret"}, id="visit", in_="1h", to="queue:mail", headers={"x-name": "Ada"})
    tab.page.goto(f"{tab.url}/#/event/visit?tenant=clinic")
    tab.sees("visit", "h1")
    tab.sees("The payload is not shown.")
    tab.misses("secret")
    tab.misses("Ada")


def test_a_large_hostile_payload_is_folded(tab: Tab, client: Client) -> None:
    wide = {f"<b>{n}": ["\u202e", {"deep": [[["<script>"]]]}] for n in range(2_000)}
    client.schedule(wide, id="wide", in_="1h", to="queue:mail")
    tab.open("event/wide")
    tab.sees("{ 2000 }", ".tree summary >> nth=0")
    tab.page.locator(".tree summary").first.click()
    tab.sees("<b>0", ".tree")
    tab.sees("and 1800 more", ".tree")
    assert tab.page.locator("main script, main .tree b").count() == 0
