"""The operations page of a cluster: every node shows all nodes; nodes are drained, killed and forgotten meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from everbell import Client
from tests.acceptance.browser import AXE, chromium, tab_of
from tests.acceptance.fleet import Fleet
from tests.services import shared


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    options = ("--lease", "1s", "--partitions", "12")
    with Fleet(tmp_path, shared.postgres().fresh_schema(), *options) as fleet:
        fleet.grow("n1", "n2", "n3")
        fleet.until_balanced("n1", "n2", "n3")
        yield fleet


def row(node: str) -> str:
    """The row of a node, as a selector. Other rows name it as the node that they watch."""
    return f"[aria-label=Nodes] tbody tr:has(td:first-child:has-text('{node}'))"


def test_a_cluster_that_loses_a_node_while_the_page_is_open(browser: Browser, fleet: Fleet) -> None:
    with Client(fleet.nodes["n2"].url, tenant="shop") as client:
        client.schedule_many({"id": f"e-{n}", "in": "1h", "to": "queue:mail"} for n in range(30))
    with tab_of(browser, fleet.nodes["n1"].url) as tab:
        tab.open("cluster")
        tab.sees("n1 (this one)")
        for name in ("n1", "n2", "n3"):
            tab.sees("4", row(name))
        if AXE.exists():
            assert tab.flaws() == []
        tab.picture("cluster-of-three", 1280)
        tab.picture("cluster-of-three", 400)
        tab.picture("cluster-of-three", 2560)

        tab.page.locator(row("n3")).get_by_role("button", name="Drain…").click()
        tab.click("Drain it")
        tab.sees("draining", row("n3"))
        fleet.until(lambda view: all(each["owner"] != "n3" for each in view["partitions"]), "n3 is drained")
        tab.page.locator(row("n3")).get_by_role("button", name="Undrain").click()
        tab.sees("n3 gets partitions again", ".toasts")
        fleet.until_balanced("n1", "n2", "n3")

        fleet.kill("n2")
        tab.sees("Stand-ins")
        expect(tab.page.locator(row("n2"))).to_have_count(0)
        tab.picture("cluster-lost-one", 1280)
        tab.page.locator("[aria-label='Stand-ins'] tr:has-text('n2')").first.get_by_role(
            "button", name="Forget…"
        ).click()
        tab.click("Forget it")
        expect(tab.page.locator("[aria-label='Stand-ins']")).to_have_count(0)

        tab.open("events")
        tab.sees("e-29")

        fleet.kill("n1")
        tab.sees("This node does not answer", ".banner")
        tab.sees("n3", ".banner")
        tab.sees("e-29")
        other = tab.page.locator(".banner a", has_text="n3")
        assert other.get_attribute("href", timeout=5_000), "the page links to the other node"
        assert tab.complaints == []
