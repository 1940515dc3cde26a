"""The operations page in a real browser, with real data behind a gateway: every page, every action, hostile text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from everbell import Client
from tests.acceptance.browser import AXE, Tab, chromium, tab_of
from tests.acceptance.machine import until
from tests.acceptance.page_scene import PENDING, furnish
from tests.acceptance.processes import PATIENCE_S, ServerProcess, quiet_environment

PAGES = (
    "overview",
    "events",
    "events?status=dead",
    "event/pack-7",
    "event/daily-report",
    "recurring",
    "dead",
    "keys",
    "keys/order-7",
    "queues",
    "targets",
    "tenant",
    "cluster",
    "tenants",
    "access",
    "schedule",
)
HOSTILE = '<img src=x onerror="document.title=1">"\'&amp; שלום </script>'
TURNED = f"{HOSTILE} \u202e gnp.exe \u2066"
"""With marks that turn the direction of text, which an id may not have."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("page"), "--gateways", "1", "--partitions", "16") as started:
        furnish(started.url)
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_drawn_and_open_to_everybody(browser: Browser, server: ServerProcess, theme: str) -> None:
    with tab_of(browser, server.url, theme=theme) as tab:
        for address in PAGES:
            tab.open(address)
            if AXE.exists():
                assert tab.flaws() == [], address
            name = re.sub(r"\W+", "-", address)
            for width in (400, 2560, 1280):
                tab.picture(f"{name}-{theme}", width)
        tab.is_clean()
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make page-tools installs it with npm")


def test_an_empty_server_is_shown_without_an_error(browser: Browser, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as empty, tab_of(browser, empty.url) as tab:
        for address in PAGES:
            if not address.startswith("event/"):
                tab.open(address)
                expect(tab.page.locator(".alert.is-bad")).to_have_count(0)
        tab.open("event/nothing")
        tab.sees("There is no such event")
        tab.is_clean()


def test_filters_are_in_the_address_and_pages_follow_each_other(tab: Tab) -> None:
    tab.open("events")
    tab.find("select[name=field]").select_option("tag")
    tab.fill("value", "sale")
    tab.click("Add filter")
    tab.sees("tag sale", ".chip")
    assert "tag=sale" in tab.page.url
    expect(tab.page.locator("tbody tr")).to_have_count(50)
    tab.click("Next page")
    expect(tab.page.locator("tbody tr")).to_have_count(40)
    tab.page.reload()
    expect(tab.page.locator("tbody tr")).to_have_count(40)
    tab.click("Remove the filter tag sale")
    expect(tab.page.locator(".chip")).to_have_count(0)
    tab.click("Dead")
    expect(tab.page.locator("tbody tr")).to_have_count(3)
    assert "status=dead" in tab.page.url


def test_all_matching_events_are_cancelled_after_a_confirmation_with_their_number(tab: Tab, client: Client) -> None:
    client.schedule_many({"payload": n, "in": "3h", "to": "queue:mail", "tags": ["bulk"]} for n in range(120))
    tab.open("events?tag=bulk")
    tab.page.get_by_label("Select all on this page").check()
    tab.sees("50 events selected", ".bulk")
    tab.click("Select all matching")
    tab.sees("All 120 matching events", ".bulk")
    tab.click("Cancel…")
    tab.click("Cancel 120 events")
    tab.sees("120 events cancelled", ".toasts")
    tab.sees("No events match")
    assert list(client.list(tag="bulk")) == []


def test_selected_events_are_moved_and_the_list_holds_still_meanwhile(tab: Tab, client: Client) -> None:
    client.schedule_many({"id": f"move-{n}", "in": "3h", "to": "queue:mail", "tags": ["move"]} for n in range(3))
    before = client.get("move-1").at
    tab.open("events?tag=move")
    tab.page.get_by_label("Select move-1").check()
    tab.sees("Held", "header.top")
    client.schedule(1, id="move-4", in_="3h", to="queue:mail", tags=["move"])
    tab.click("Move…")
    tab.fill("by", "1h")
    tab.click("Move 1 event")
    tab.sees("1 event moved", ".toasts")
    tab.sees("move-4")
    assert (client.get("move-1").at - before).total_seconds() == 3_600


def test_the_list_is_live_and_can_be_paused(tab: Tab, client: Client) -> None:
    tab.open("events?tag=live")
    client.schedule(1, id="live-1", in_="1h", to="queue:mail", tags=["live"])
    tab.sees("live-1")
    tab.page.keyboard.press("p")
    tab.sees("Paused", "header.top")
    client.cancel("live-1")
    tab.page.keyboard.press("p")
    tab.sees("No events match")


def test_the_keyboard_moves_selects_and_opens(tab: Tab, client: Client) -> None:
    client.schedule_many(
        {"id": f"press-{n}", "in": f"{n + 1}h", "to": "queue:mail", "tags": ["press"]} for n in range(2)
    )
    tab.open("events?tag=press")
    tab.sees("press-1")
    for key in "jjx":
        tab.page.keyboard.press(key)
    tab.sees("1 event selected", ".bulk")
    tab.page.keyboard.press("Enter")
    tab.sees("press-1", "h1")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("press-0\n")
    tab.sees("press-0", "h1")


def test_an_event_says_why_and_shows_its_attempts_payload_and_neighbours(tab: Tab) -> None:
    tab.open("event/pack-7")
    tab.sees("Why it is here")
    tab.sees("Attempt 1", ".timeline")
    tab.sees("Connection refused", ".timeline")
    tab.sees('step: "pack"', ".tree")
    tab.sees("ship-7")
    tab.open("event/ship-7")
    tab.sees("The head is pack-7")


def test_an_event_is_rescheduled_snoozed_delivered_and_cancelled(tab: Tab, client: Client) -> None:
    first = client.schedule({"n": 1}, id="act-1", in_="1h", to="http://127.0.0.1:9/hook").at
    tab.open("event/act-1")
    tab.click("Try it…")
    tab.click("Try it")
    tab.sees("Connection refused", "dialog[open]")
    tab.click("Close")
    tab.click("Snooze…")
    tab.fill("by", "30m")
    tab.click("Snooze")
    until(lambda: client.get("act-1").at > first, "the event is snoozed")
    tab.click("Reschedule…")
    tab.fill("in", "2h")
    tab.fill("at", "2036-01-01T00:00:00Z")
    tab.click("Reschedule")
    tab.sees("Give one of the three", "dialog[open]")
    tab.fill("in", "")
    tab.click("Reschedule")
    until(lambda: client.get("act-1").at.year == 2036, "the event is rescheduled")
    tab.click("Deliver now")
    tab.sees("Attempt 1", ".timeline")
    tab.click("Cancel…")
    tab.click("Cancel it")
    tab.sees("cancelled", ".head")


def test_text_to_copy_works_as_it_is(tab: Tab, client: Client) -> None:
    client.schedule({"it's": ["quoted", '"']}, id="copy me", in_="2h", to="queue:mail", tags=["a b"])
    tab.open("event/copy%20me")
    environment = quiet_environment() | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    for language, run in (("curl", ["bash", "-c"]), ("CLI", ["bash", "-c"]), ("Python", ["python", "-c"])):
        tab.click(language)
        text = tab.find("pre.code").inner_text()
        done = subprocess.run(
            [*run, text], capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False
        )
        assert done.returncode == 0, (text, done.stderr)
        assert '"status":4' not in done.stdout, done.stdout
    assert client.get("copy me").version == 1


def test_dead_events_are_redriven_and_discarded_by_group(tab: Tab, client: Client) -> None:
    tab.open("dead")
    tab.sees("Connection refused")
    tab.sees("1 group of 3 events")
    tab.click("Redrive…")
    tab.fill("rate", "100")
    tab.click("Redrive 3 events")
    tab.sees("3 events redriven", ".toasts")
    until(lambda: all(client.get(f"lost-{n}").attempt_count for n in range(3)), "they are tried again")
    tab.sees("3 events")
    tab.click("Discard all…")
    tab.click("Discard 3 events")
    tab.sees("No dead events")


def test_a_recurring_event_is_paused_resumed_edited_and_backfilled(tab: Tab, client: Client) -> None:
    client.schedule(
        {"n": 1}, id="tick", to="queue:ticks", repeat={"cron": "0 6 1 * *", "until": "2040-01-01T00:00:00Z"}
    )
    tab.open("recurring")
    tab.sees("At 09:00 on Monday to Friday (Europe/Berlin)")
    tab.open("event/tick")
    tab.click("Pause…")
    tab.fill("note", "the numbers are wrong")
    tab.click("Pause")
    tab.sees("the numbers are wrong")
    tab.click("Resume")
    tab.misses("the numbers are wrong")
    tab.click("Backfill…")
    tab.fill("from", "2025-01-01T00:00:00Z")
    tab.fill("until", "2025-03-15T00:00:00Z")
    tab.click("Backfill")
    tab.sees("3 scheduled", "dialog[open]")
    tab.click("Close")
    tab.find("main a", "Edit").click()
    tab.fill("cron", "0 25 * * *")
    tab.sees("repeat.cron")
    tab.fill("cron", "30 7 * * MON")
    tab.sees("At 07:30 on Monday")
    tab.click("Save the changes")
    tab.sees("At 07:30 on Monday (UTC)")
    repeat = client.get("tick").repeat
    assert repeat is not None
    # The form does not show the end of the recurrence, and so must not remove it.
    assert "2040-01-01" in json.dumps(repeat, default=str)


def test_an_event_is_scheduled_from_the_form(tab: Tab, client: Client) -> None:
    tab.open("schedule")
    tab.fill("id", "made-here")
    tab.fill("to", "nonsense:")
    tab.fill("payload", '{"big": 12345678901234567890, "deep": {"list": [1, 2]}}')
    tab.click("Schedule it")
    tab.sees("Not scheduled")
    tab.fill("to", "queue:mail")
    tab.sees('"id":"made-here"', "pre.code")
    tab.click("Schedule it")
    tab.sees("made-here", "h1")
    assert client.get("made-here").to == "queue:mail"


def test_a_policy_is_guarded_by_its_version(tab: Tab, client: Client) -> None:
    client.set_policy({"retention": "2d"})
    tab.open("tenant")
    tab.sees("2d")
    tab.click("Edit…")
    client.set_policy({"retention": "3d"})
    tab.fill("document", '{"retention": "9d"}')
    tab.click("Save")
    tab.sees("version", "dialog[open] .bad-text")
    tab.click("Back")
    tab.sees("3d")
    tab.click("Edit…")
    tab.fill("document", '{"retention": "9d", "limits": {"pending": 5000}}')
    tab.click("Save")
    tab.sees("9d")
    tab.sees("of 5,000")
    tab.click("Delete…")
    tab.click("Delete it")
    tab.sees("It has no policy of its own")


def test_a_queue_is_paused_and_resumed(tab: Tab, client: Client) -> None:
    tab.open("tenant")
    tab.click("Pause…")
    tab.find("dialog select").select_option("queue")
    tab.fill("name", "mail")
    tab.fill("note", "moving house")
    tab.click("Pause")
    tab.sees("moving house")
    assert [pause.name for pause in client.pauses()] == ["mail"]
    tab.open("overview")
    tab.sees("1 pause is in force")
    tab.open("tenant")
    tab.click("Resume")
    tab.sees("Nothing is paused")


def test_the_head_of_a_key_is_cancelled(tab: Tab, client: Client) -> None:
    tab.open("keys")
    tab.sees("order-7", "table")
    tab.find("table a", "order-7").click()
    tab.sees("pack-7")
    tab.click("Cancel the head…")
    tab.click("Cancel the head")
    until(lambda: client.get("pack-7").status == "cancelled", "the head is cancelled")
    tab.sees("ship-7")


def test_hostile_text_is_only_ever_text(tab: Tab, client: Client) -> None:
    client.schedule({TURNED: TURNED}, id=HOSTILE, key=HOSTILE, tags=[HOSTILE[:60]], in_="1h", to="queue:mail")
    client.schedule({"long": "<b>" * 80_000}, id="long", in_="1h", to="queue:mail", tags=["hostile"])
    client.add_pause("key", HOSTILE, note=HOSTILE)
    tab.page.goto(f"{tab.url}/#/events?id_prefix=%3Cimg")
    tab.sees("<img src=x onerror=", "tbody")
    tab.find("tbody a.mono").click()
    tab.sees("<img src=x onerror=", "h1")
    tab.sees("<img src=x onerror=", ".tree")
    for address in ("tenant", "overview", "event/long"):
        tab.open(address)
    assert tab.page.locator("main img").count() == 0
    assert tab.page.title() != "1"
    client.end_pause("key", HOSTILE)


def test_the_page_says_that_its_node_is_down_and_recovers(browser: Browser, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, store=f"rocksdb:{tmp_path / 'store'}") as node, tab_of(browser, node.url) as tab:
        with Client(node.url) as client:
            client.schedule(1, id="kept", in_="1h", to="queue:mail")
        tab.open("events")
        tab.sees("kept")
        node.kill()
        tab.sees("This node does not answer", ".banner")
        tab.sees("kept")
        node.start()
        expect(tab.page.locator(".banner")).to_have_count(0)
        tab.sees("Live", "header.top")


def test_pending_events_are_counted_on_the_overview(tab: Tab) -> None:
    tab.open("overview")
    tab.sees("herd", "#future")
    tab.click("Week")
    tab.sees("Due in the next week")
    tab.click("Day")
    tab.sees("Due in the next day")
    expect(tab.page.locator("#future")).to_be_visible()
    total = int(tab.find(".facts-line b").inner_text().replace(",", ""))
    assert total >= PENDING
