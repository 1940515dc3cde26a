"""Actions of the operations page in a real browser, beside those of `test_page.py`: each is done, and took effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from everbell import Client
from tests.acceptance.browser import Tab, chromium, tab_of
from tests.acceptance.machine import until
from tests.acceptance.page_scene import REFUSED
from tests.acceptance.processes import ServerProcess


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("actions"), "--partitions", "16") as started:
        yield started


@pytest.fixture
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Each test has a tenant of its own."""
    with Client(server.url, tenant=request.node.name[:60]) as connected:
        yield connected


@pytest.fixture
def tab(browser: Browser, server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Tab]:
    with tab_of(browser, server.url) as opened:
        opened.page.goto(f"{server.url}/#/events?tenant={request.node.name[:60]}")
        opened.sees("Events", "h1")
        yield opened
        opened.is_clean()


def dead_events(client: Client, count: int) -> list[str]:
    """Events that died at once, because nothing listens at their target."""
    ids = [f"lost-{number}" for number in range(count)]
    client.schedule_many(
        {"id": each, "payload": each, "in": 0, "to": REFUSED, "retry": {"max_attempts": 1}} for each in ids
    )
    until(lambda: all(client.get(each).status == "dead" for each in ids), "they are dead")
    return ids


def why(client: Client, event_id: str) -> str:
    found = client.get(event_id).why
    return "" if found is None else found.code


def click_in_row(tab: Tab, text: str, name: str) -> None:
    """Click a button or link in the row that has a text."""
    tab.page.locator("tbody tr", has_text=text).first.locator("button, a.button", has_text=name).first.click()


def test_selected_events_are_made_due(tab: Tab, client: Client) -> None:
    client.schedule_many({"id": f"soon-{n}", "in": "3h", "to": "queue:mail"} for n in range(3))
    tab.open("events")
    tab.page.get_by_label("Select soon-0").check()
    tab.page.get_by_label("Select soon-2").check()
    tab.click("Deliver now…")
    tab.click("Deliver now 2 events")
    tab.sees("2 events made due", ".toasts")
    until(lambda: why(client, "soon-2") == "no-worker", "it waits for a worker")
    assert why(client, "soon-1") == "due-later"


def test_all_matching_events_of_a_status_are_moved_with_progress(tab: Tab, client: Client) -> None:
    client.schedule_many({"id": f"m-{n}", "in": "3h", "to": "queue:mail"} for n in range(60))
    before = client.get("m-59").at
    tab.open("events?status=scheduled")
    tab.page.get_by_label("Select all on this page").check()
    tab.click("Select all matching")
    tab.sees("All 60 matching events", ".bulk")
    tab.click("Move…")
    tab.sees("All events of tenant", "dialog[open]")
    tab.click("Move 60 events")
    tab.sees("Give one of the two", "dialog[open]")
    tab.fill("by", "-1h")
    tab.click("Move 60 events")
    tab.sees("60 events moved", ".toasts")
    assert (before - client.get("m-59").at).total_seconds() == 3_600


def test_an_action_on_many_is_stopped_and_says_how_far_it_came(tab: Tab, client: Client) -> None:
    client.schedule_many({"id": f"s-{n}", "in": "3h", "to": "queue:mail", "tags": ["many"]} for n in range(1_200))
    tab.open("events?tag=many")
    tab.page.get_by_label("Select all on this page").check()
    tab.click("Select all matching")
    tab.sees("All 1,200 matching events", ".bulk")
    # The first page is cancelled while the dialog is open. Its answer is held back until the user has stopped.
    held: list[Route] = []
    tab.page.route("**/events?tag=many&limit=500*", lambda route: held.append(route))
    tab.click("Cancel…")
    with tab.page.expect_request("**/events?tag=many&limit=500*"):
        tab.click("Cancel 1,200 events")
    tab.sees("Begins…", "dialog[open]")
    tab.click("Stop")
    held[0].continue_()
    tab.sees("500 events cancelled; stopped", ".toasts")
    assert sum(1 for _ in client.list(tag="many")) == 700


def test_one_dead_event_is_redriven_and_discarded(tab: Tab, client: Client) -> None:
    dead_events(client, 1)
    tab.open("event/lost-0")
    tab.sees("gave up after 1 attempt; the last", ".why")
    tab.click("Redrive")
    tab.sees("It gets a new set of attempts", ".toasts")
    tab.sees("Attempt 1", ".timeline")
    until(lambda: client.get("lost-0").status == "dead", "it died again")
    tab.sees("dead", ".head")
    tab.click("Discard…")
    tab.click("Discard it")
    tab.sees("cancelled", ".head")
    assert client.get("lost-0").status == "cancelled"


def test_dead_events_are_redriven_all_by_group_and_from_the_list(tab: Tab, client: Client) -> None:
    ids = dead_events(client, 4)
    tab.open("dead")
    tab.sees("1 group of 4 events")
    tab.click("Redrive all…")
    tab.click("Redrive 4 events")
    tab.sees("4 events redriven", ".toasts")
    until(lambda: all(client.get(each).status == "dead" for each in ids), "they died again")
    tab.find("a.button", "List them").click()
    tab.page.get_by_label("Select lost-1").check()
    tab.click("Redrive…")
    tab.fill("rate", "10")
    tab.click("Redrive 1 event")
    tab.sees("1 event redriven", ".toasts")
    until(lambda: all(client.get(each).status == "dead" for each in ids), "it died again")
    tab.sees("lost-1")
    tab.page.get_by_label("Select lost-2").check()
    tab.click("Discard…")
    tab.click("Discard 1 event")
    tab.sees("1 event discarded", ".toasts")
    tab.open("dead")
    tab.sees("1 group of 3 events")
    click_in_row(tab, "Connection refused", "Discard…")
    tab.click("Discard 3 events")
    tab.sees("No dead events")
    assert {client.get(each).status for each in ids} == {"cancelled"}


def test_recurring_events_are_delivered_paused_resumed_and_edited_from_their_list(tab: Tab, client: Client) -> None:
    client.schedule({"n": 1}, id="nightly", to="queue:work", repeat={"cron": "0 3 * * *", "tz": "Europe/Berlin"})
    tab.open("recurring")
    tab.sees("At 03:00 every day (Europe/Berlin)")
    tab.page.locator("summary", has_text="then").click()
    expect(tab.page.locator("details div")).to_have_text([re.compile(r"^\w{3} \d{4}-\d\d-\d\d 03:00$")] * 4)
    click_in_row(tab, "nightly", "Pause…")
    tab.fill("note", "stocktaking")
    tab.click("Pause")
    tab.sees("stocktaking")
    click_in_row(tab, "nightly", "Resume")
    tab.misses("stocktaking")
    click_in_row(tab, "nightly", "Now")
    tab.sees("nightly is due now", ".toasts")
    until(lambda: why(client, "nightly") == "no-worker", "it waits for a worker")
    click_in_row(tab, "nightly", "Edit")
    tab.fill("cron", "0 4 * * *")
    tab.sees("At 04:00 every day")
    tab.click("Save the changes")
    until(lambda: "0 4 * * *" in str(client.get("nightly").repeat), "it is changed")


def test_a_key_is_opened_paused_resumed_and_unblocked_from_the_list(tab: Tab, client: Client) -> None:
    client.schedule(1, id="first", key="order-1", to=REFUSED, in_=0, retry={"backoff": "10m"})
    client.schedule(2, id="second", key="order-1", to="queue:mail", in_=0)
    until(lambda: client.get("first").status == "retrying", "the head failed")
    tab.open("keys")
    tab.fill("key", "order-1")
    tab.click("Open the key")
    tab.sees("order-1", "h1")
    tab.sees("1 event waits behind it")
    tab.click("Pause…")
    tab.fill("note", "a refund")
    tab.click("Pause")
    tab.sees("a refund", ".head")
    # The explanation of an event is never older than its page.
    tab.open("event/second")
    tab.sees("paused", ".why code")
    tab.sees("a refund", ".why")
    client.end_pause("key", "order-1")
    tab.sees("behind", ".why code")
    tab.open("keys")
    click_in_row(tab, "order-1", "Cancel the head…")
    tab.click("Cancel the head")
    until(lambda: client.get("first").status == "cancelled", "the head is cancelled")
    tab.sees("No key is blocked")
    assert why(client, "second") == "no-worker"


def test_a_queue_and_a_target_are_paused_and_resumed_from_their_lists(tab: Tab, client: Client) -> None:
    client.schedule(1, to="queue:mail", in_=0)
    client.schedule(1, id="out", to=REFUSED, in_=0, retry={"backoff": "10m"})
    until(lambda: client.get("out").status == "retrying", "an attempt failed")
    for page, name, what in (("queues", "mail", "queue"), ("targets", "http://127.0.0.1:9", "target")):
        tab.open(page)
        click_in_row(tab, name, "Pause…")
        tab.fill("note", "a new machine")
        tab.fill("for", "2h")
        tab.click("Pause")
        tab.sees("a new machine", "tbody")
        (pause,) = client.pauses()
        assert (pause.what, pause.name, pause.note) == (what, name, "a new machine")
        click_in_row(tab, name, "Resume")
        tab.misses("a new machine")
        assert client.pauses() == ()


def test_a_tenant_is_paused_opened_and_chosen(tab: Tab, client: Client) -> None:
    client.schedule(1, id="mine", to="queue:mail", in_=0)
    tab.open("tenant")
    tab.click("Pause…")
    tab.find("dialog select").select_option("tenant")
    tab.fill("note", "the books are closed")
    tab.click("Pause")
    tab.sees("the books are closed")
    until(lambda: why(client, "mine") == "paused", "its events are paused")
    tab.click("Resume")
    tab.sees("Nothing is paused")
    tab.open("tenants")
    tab.click("Open another…")
    tab.fill("name", "brand-new")
    tab.click("Open it")
    tab.sees("Tenant brand-new", "h1")
    tab.page.get_by_label("Tenant", exact=True).select_option("another…")
    tab.fill("name", "newer-still")
    tab.click("Open it")
    tab.sees("Tenant newer-still", "h1")
    tab.open("tenants")
    click_in_row(tab, "test_a_tenant_is_paused", "Events")
    tab.sees("mine", "tbody")


def test_another_event_is_made_from_one_and_its_text_is_copied(tab: Tab, client: Client) -> None:
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    client.schedule({"n": 1}, id="model", in_="1h", to="queue:mail", tags=["a"], key="k", headers={"x-shop": "7"})
    tab.open("event/model")
    tab.click("Copy")
    tab.sees("Copied curl", ".toasts")
    assert "/events" in tab.page.evaluate("() => navigator.clipboard.readText()")
    tab.find("a.button", "Schedule another").click()
    tab.sees("Schedule an event", "h1")
    tab.fill("id", "copy")
    tab.click("At a time")
    tab.fill("at", "2036-05-01T00:00")
    tab.click("Schedule it")
    tab.sees("copy", "h1")
    made = client.get("copy")
    assert (made.payload, made.to, made.key, made.tags) == ({"n": 1}, "queue:mail", "k", ("a",))
    assert made.at.year == 2036


def test_a_recurring_event_is_scheduled_from_the_form_with_a_preview(tab: Tab, client: Client) -> None:
    tab.open("schedule")
    tab.fill("id", "weekly")
    tab.fill("to", "queue:mail")
    tab.click("Every")
    tab.fill("every", "1h")
    tab.click("Cron")
    tab.fill("cron", "0 9 * * MON")
    tab.sees("At 09:00 on Monday")
    tab.sees("Mon ", "main .list")
    tab.click("Schedule it")
    tab.sees("weekly", "h1")
    assert "0 9 * * MON" in str(client.get("weekly").repeat)
