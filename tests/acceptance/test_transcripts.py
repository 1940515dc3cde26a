"""The consoles in the documentation show real output: every command is run against a real server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from everbell.client.blocking import Client
from everbell.client.queue_calls import Failure
from tests.acceptance.processes import ServerProcess
from tests.acceptance.transcripts import Shell, plain, steps

DOCS = Path(__file__).parents[2] / "docs"

Prepare = Callable[[Client], None]


def _two_timeouts(client: Client) -> None:
    for name in ("order-18", "order-19"):
        client.schedule({"order": name}, to="queue:timeouts", in_="20m", id=f"{name}-timeout", tags=["checkout"])


def _one_overdue(client: Client) -> None:
    late = datetime.now(UTC) - timedelta(minutes=4)
    client.schedule(1, to="queue:nobody", at=late, id="overdue")


def _dead_head(client: Client) -> None:
    for name in ("pack", "ship", "bill"):
        client.schedule({"step": name}, to="queue:orders", in_="0s", id=f"{name}-20", key="order-20")
    _refuse(client, "orders", "there is no such order")


def _hook(client: Client) -> None:
    client.schedule({"n": 1}, to="http://127.0.0.1:9/hook", in_="1h", id="hook-1")


def _two_dead(client: Client) -> None:
    client.schedule({"to": "ada"}, to="queue:mail", in_="0s", id="mail-1")
    _refuse(client, "mail", "no such mailbox")
    client.schedule(1, to="queue:hats", in_="0s", id="hats", tags=["checkout"])
    _refuse(client, "hats", "sold out")


def _refuse(client: Client, queue: str, reason: str) -> None:
    (lease,) = client.lease(queue, wait="20s", limit=1)
    client.fail(queue, [Failure(lease.token, reason, permanent=True)])


def _report(client: Client) -> None:
    repeat = {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin"}
    client.schedule({"kind": "daily"}, to="queue:reports", id="daily-report", repeat=repeat)


def _woken(client: Client) -> None:
    client.schedule({"to": "ada"}, to="queue:mail", in_="0s", id="wake-ada")
    (lease,) = client.lease("mail", wait="20s")
    client.ack("mail", [lease.token])


BEFORE: dict[str, tuple[str, Mapping[str, Prepare]]] = {
    "http-api.md": (
        "shop",
        {
            "Move many": _two_timeouts,
            "Forecast": _one_overdue,
            "A key and its head": _dead_head,
            "Ring it now, or only try it": _hook,
            "Dead events": _two_dead,
        },
    ),
    "cli.md": ("default", {"show": _woken}),
    "quickstart.md": ("default", {}),
    "recurrence.md": ("default", {"Pause and resume": _report}),
}
"""The pages, their tenants, and the setup before the commands under a heading, which the page does not show."""

OTHERWISE = ("make ", "everbell worker ", "python ", "curl -s ")
"""Commands that a page shows and that other tests run: they run for ever, or need a program that the page shows."""


@pytest.fixture(scope="module", autouse=True)
def curl() -> None:
    """The pages use `curl --json`, which exists since 7.82."""
    told = subprocess.run(["curl", "--help", "all"], capture_output=True, text=True, check=False)
    if "--json" not in told.stdout:
        pytest.skip("this curl is older than 7.82")


@pytest.mark.parametrize("name", BEFORE)
def test_the_consoles_of_a_page_show_the_real_output(name: str, tmp_path: Path) -> None:
    tenant, before = BEFORE[name]
    waiting = dict(before)
    ran = 0
    with ServerProcess(tmp_path) as server, Client(server.url, tenant) as client:
        shell = Shell(tmp_path, server.url)
        for step in steps(DOCS / name):
            if step.heading in waiting:
                waiting.pop(step.heading)(client)
            if not step.command.startswith(OTHERWISE):
                shell.check(step)
                ran += 1
    assert ran > 0
    assert not waiting, "these headings have no commands any more"


def test_values_that_differ_from_run_to_run_are_not_compared() -> None:
    first = '{"id":"ev_1a","at":"2026-11-15T22:10:38.001Z"}\nrings in 19m 58s\n#1  2026-11-15 21:51:42.407 UTC  2ms  ok'
    other = '{"id":"ev_-Z","at":"2031-01-01T00:00:00.000Z"}\nrings in 20m\n#1  2031-01-01 00:00:00 UTC  113ms  ok'
    assert plain(first) == plain(other)
    assert plain(first) != plain(other.replace("ok", "failed"))
