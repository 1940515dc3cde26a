"""Every unfinished event has an explanation: a table of situations, and the rule that there is always one."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from everbell.core.event import Attempt, Course, Event
from everbell.core.pause import Pause
from everbell.core.time import INSTANT_MAX, format_instant
from everbell.core.why import Ahead, Situation, WhyCode, explain

NOW = 1_767_225_600_000
HOST = "https://shop.example:443"
EVENT = Event("e1", "shop", 3, 17, NOW - 5, NOW - 5, "https://shop.example/hook", b"{}", NOW - 10, "order-17")
IN_QUEUE = replace(EVENT, to="queue:mail")
FAILED = (Attempt(1, NOW - 5, 3, "failed", "HTTP 503", 503),)
RETRYING = replace(EVENT, run_at=NOW + 60_000, attempt_count=1, attempts=FAILED)
CALM = Situation(NOW, HOST, target_cap=8, tenant_cap=100, worker_patience_ms=60_000)
PAUSE = Pause("shop", "target", "https://shop.example", NOW - 9_000, "3q9x7d", "a new database", NOW + 9_000)


def text(at: int) -> str:
    return format_instant(at)


TABLE: list[tuple[Event, dict[str, Any], str, str, dict[str, Any]]] = [
    (EVENT, {"is_owned": False}, "no-owner", "No node owns its partition", {}),
    (
        EVENT,
        {"in_flight_since": NOW - 3, "attempt": 2},
        "delivering",
        "Attempt 2 is under way since",
        {"since": text(NOW - 3), "attempt": 2},
    ),
    (EVENT, {"is_storing": True}, "storing", "is being stored", {}),
    (replace(EVENT, state="dead", reason="gone"), {}, "dead", "It is dead: gone. Redrive it", {"reason": "gone"}),
    (
        replace(EVENT, run_at=INSTANT_MAX, course=Course(paused_at=NOW - 7, note="until May")),
        {},
        "paused",
        "paused since 2025-12-31T23:59:59.993Z: until May",
        {"what": "event", "name": "e1", "note": "until May", "since": text(NOW - 7)},
    ),
    (replace(EVENT, run_at=NOW + 1), {"pause": PAUSE}, "due-later", "It is due at", {"until": text(NOW + 1)}),
    (
        RETRYING,
        {},
        "retrying",
        "Attempt 1 failed: HTTP 503. Attempt 2 starts at",
        {"until": text(NOW + 60_000), "reason": "HTTP 503", "attempt": 2},
    ),
    (
        replace(RETRYING, to="handler:mail"),
        {"lacks_handler": True},
        "no-handler",
        "It waits for handler:mail",
        {"target": "handler:mail", "until": text(NOW + 60_000)},
    ),
    (
        replace(EVENT, to="handler:x"),
        {"lacks_handler": True},
        "no-handler",
        "no handler of that name",
        {"target": "handler:x"},
    ),
    (
        EVENT,
        {"pause": PAUSE, "ahead": Ahead("e0", "dead")},
        "paused",
        "Target 'https://shop.example' is paused since",
        {
            "what": "target",
            "name": "https://shop.example",
            "by": "3q9x7d",
            "note": "a new database",
            "since": text(NOW - 9_000),
            "until": text(NOW + 9_000),
        },
    ),
    (EVENT, {"pause": replace(PAUSE, what="tenant", name="")}, "paused", "Tenant 'shop' is paused", {"name": "shop"}),
    (EVENT, {"store_trouble": "it restarts"}, "store-away", "cannot be used: it restarts", {"reason": "it restarts"}),
    (
        replace(EVENT, state="waiting"),
        {"ahead": Ahead("e0", "retrying")},
        "behind",
        "It waits for event e0, which is before it in the key order-17 and is retrying.",
        {"event": "e0", "status": "retrying", "key": "order-17"},
    ),
    (EVENT, {"is_left_in_store": True}, "memory-full", "share of memory", {"target": HOST}),
    (
        EVENT,
        {"breaker_until": NOW + 8},
        "breaker-open",
        "breaker is open. The next probe",
        {"until": text(NOW + 8), "target": HOST},
    ),
    (EVENT, {"rate_until": NOW + 8}, "rate-limited", "The rate for", {"until": text(NOW + 8), "target": HOST}),
    (IN_QUEUE, {"workers_silent_ms": None}, "no-worker", "since its node started", {"queue": "mail"}),
    (IN_QUEUE, {"workers_silent_ms": 60_000}, "no-worker", "No worker has called", {"since": text(NOW - 60_000)}),
    (IN_QUEUE, {"workers_silent_ms": 59_999}, "awaiting-worker", "It waits for a worker of the queue mail", {}),
    (EVENT, {"target_in_flight": 8}, "target-at-cap", "has 8 attempts in flight", {"in_flight": 8, "cap": 8}),
    (EVENT, {"tenant_in_flight": 100}, "node-at-cap", "Its tenant has 100 attempts", {"in_flight": 100, "cap": 100}),
    (EVENT, {}, "starting", "starts in a moment", {}),
]


@pytest.mark.parametrize(("event", "changes", "code", "words", "facts"), TABLE, ids=lambda value: str(value)[:24])
def test_an_explanation_names_the_first_obstacle(
    event: Event, changes: dict[str, Any], code: str, words: str, facts: dict[str, Any]
) -> None:
    why = explain(event, replace(CALM, **changes))
    assert why.code == code
    assert words in why.sentence
    assert {name: getattr(why, name) for name in facts} == facts


def test_the_table_has_every_code() -> None:
    assert {code for _, _, code, _, _ in TABLE} == set(get_args(WhyCode))


def test_there_is_always_one_sentence() -> None:
    chance = random.Random(17)
    obstacles = [changes for _, changes, _, _, _ in TABLE]
    events = [event for event, _, _, _, _ in TABLE]
    for _ in range(2_000):
        changes: dict[str, Any] = {}
        for some in chance.sample(obstacles, 3):
            changes.update(some)
        why = explain(chance.choice(events), replace(CALM, **changes))
        assert why.code in get_args(WhyCode)
        assert why.sentence[0].isupper() or why.sentence.startswith("http")
        assert why.sentence.endswith(".")
