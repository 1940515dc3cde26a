"""Every example runs to its end, and prints the results that it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.processes import quiet_environment
from tests.services import shared

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 120
WITH_LOG = ("call_sessions",)
"""The examples that get the URL of a log that several nodes share."""

SHOWN = {
    "library_reminder": ["first run: scheduled", "second run: user 7, stretch! (attempt 1)"],
    "webhook_with_retries": ["attempt 1: failed, 503", "attempt 2: failed, 503", "attempt 3: delivered, 200"],
    "ordered_by_key": [
        "order-17: pack fails",
        "order-17 in order: pack, ship, bill",
        "order-18 in order: pack, ship, bill",
    ],
    "cancel_and_reschedule": [
        "hats: cancelled",
        "gloves: put off, version 1 became 2",
        "gloves: refused, the event has version 2, not 1",
        "delivered: shoes, then gloves, and no hats",
        "shoes: too late, the event is already delivered",
    ],
    "queue_worker": [
        "worker: mail to ada@shop.example",
        "worker: mail to grace@shop.example",
        "handled 2, failed 1",
        "dead: mail-1, nobody is not an address",
    ],
    "request_timeout": [
        "quote-1: answered",
        "quote-3: answered",
        "quote-4: an answer, but too late",
        "timed out: quote-2, quote-4",
        "the timeouts of quote-1 and quote-3: cancelled, cancelled",
    ],
    "recurring_report": [
        "2027-03-27T02:30:00+01:00, 2027-03-28T03:00:00+02:00, 2027-03-29T02:30:00+02:00",
        "only the latest rang: number 5 of sales",
        "counters: {'fired': 1, 'missed': 4, 'skipped': 0, 'reasons': {'late': 4}}",
        "sales: paused, until the numbers are right",
        "sales: scheduled",
        "backfilled 3 reports",
    ],
    "batch_reconciliation": [
        "monday: complete",
        "tuesday: at the end of the SLA, missing p6",
        "closed in the order: monday, tuesday",
    ],
    "price_change": [
        "stored 1000 changes of price, and sending them twice changed nothing",
        "1,000 prices changed, 0 of them early",
    ],
    "escalation": [
        "disk-full: paging ada",
        "disk-full: paging grace",
        "disk-full: grace takes it; the page to the manager is cancelled",
    ],
    "session_refresh": [
        "ada: signed out",
        "grace: still there after",
        "grace: a refresh now is refused",
        "ended in the order: ada, grace",
    ],
    "call_sessions": [
        "30 calls, each held by n1, n2, n3",
        "n1 was killed",
        "ended: all vanished ones",
        "still open: scheduled, hung up: cancelled",
    ],
    "batch_import": [
        "accepted 19,999 of 20,000",
        "refused number 4711: in: 'soon' is not a duration",
        "imported again, 19,999 accepted; 19,999 events are pending",
    ],
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_prints_the_results_that_it_promises(name: str) -> None:
    arguments = [shared.postgres().fresh_schema()] if name in WITH_LOG else []
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=quiet_environment(),
        check=False,
    )
    assert run.returncode == 0, run.stderr
    missing = [line for line in SHOWN[name] if line not in run.stdout]
    assert not missing, run.stdout
