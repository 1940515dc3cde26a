"""`everbell queues` and `everbell targets` against a scripted server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everbell.cli.main import main
from tests.unit.client.scripted import Answer, ScriptedServer

JSON = {"content-type": "application/json"}
CALLED = "2026-01-01T00:00:00.000Z"
MAIL = {
    "name": "mail",
    "waiting": 1_200,
    "more": True,
    "oldest_wait_ms": 61_000,
    "in_flight": 3,
    "last_minute": {"delivered": 120, "failed": 2},
    "last_contact": CALLED,
    "workers": [{"name": "mail-1\x1b[2J", "host": "app-3", "version": "0.1.0", "last_contact": CALLED}],
}
HOST = {
    "target": "https://shop.example:443",
    "waiting": 0,
    "in_flight": 4,
    "cap": 128,
    "last_minute": {"delivered": 300, "failed": 12, "p50_ms": 12, "p99_ms": 210},
    "breaker": {"state": "open", "failures": 10, "until": CALLED},
    "last_error": {"at": CALLED, "event": "order-9", "reason": "not now", "code": 503},
}


def run(capsys: pytest.CaptureFixture[str], command: str, answer: dict[str, Any]) -> tuple[int, str, str]:
    with ScriptedServer(Answer(200, answer, JSON)) as server:
        code = main([*command.split(), "--server", server.url, "--tenant", "shop"])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_queues_are_shown_with_their_workers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "queues", {"queues": [MAIL], "unheard": ["n2"]})
    queue, worker = (line.split() for line in out.splitlines() if line.startswith("mail"))
    assert queue[:6] == ["mail", "1,200+", "1m", "1s", "3", "120"]
    assert "app-3" in worker
    assert "\x1b[2J" not in out, "a worker cannot control the terminal"
    assert "no answer from n2" in err
    assert code == 0


def test_the_exit_code_tells_that_a_queue_has_no_worker(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "queues", {"queues": [{**MAIL, "stalled": True, "workers": []}]})
    assert code == 1
    assert "no worker" in out
    code, out, _ = run(capsys, "queues --json", {"queues": [{**MAIL, "stalled": True}]})
    assert code == 1
    assert json.loads(out)["queues"][0]["stalled"] is True


def test_targets_are_shown_with_breaker_and_last_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "targets", {"targets": [HOST]})
    assert code == 0
    for text in ("https://shop.example:443", "4 of 128", "300", "12ms", "210ms", "breaker open", "503 not now"):
        assert text in out


def test_nothing_to_show_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no queue has due events" in run(capsys, "queues", {"queues": []})[2]
    assert "no event is due soon" in run(capsys, "targets", {"targets": []})[2]
