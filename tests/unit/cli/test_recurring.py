"""`everbell preview`, `backfill`, and the options of `schedule` for recurrence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everbell.cli.main import main
from tests.unit.client.scripted import Answer, ScriptedServer

AT = "2126-11-20T10:00:00.000Z"
SCHEDULED = {"id": "report", "at": AT, "status": "scheduled", "version": 1}
EVENT = SCHEDULED | {
    "tenant": "default",
    "to": "queue:q",
    "occurrence": 4,
    "created_at": "2026-11-20T10:00:00.000Z",
    "attempt_count": 0,
    "repeat": {"cron": "0 9 * * *", "tz": "Europe/Berlin", "count": 9, "misfire": "latest"},
    "counters": {"fired": 1, "missed": 2, "skipped": 0, "reasons": {"late": 2}},
}
PAUSED = EVENT | {"status": "paused", "paused": {"since": "2026-11-20T10:00:00.000Z", "note": "holidays"}}


class Played:
    """The output of a command, and its requests."""

    def __init__(self, code: int, out: str, err: str, server: ScriptedServer) -> None:
        self.code = code
        self.out = out
        self.err = err
        self.asked = server.asked


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("EVERBELL_SERVER", "EVERBELL_TENANT", "EVERBELL_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(command: list[str], *script: Any) -> Played:
        with ScriptedServer(*script) as server:
            code = main([*command, "--server", server.url])
        printed = capsys.readouterr()
        return Played(code, printed.out, printed.err, server)

    return run


def test_a_preview_of_an_expression_needs_no_server(play: Any) -> None:
    command = ["preview", "30 2 * * *", "--tz", "Europe/Berlin", "--gap", "after", "--from", "2027-03-27T12:00:00Z"]
    played = play([*command, "--count", "2"])
    assert (played.code, played.asked) == (0, [])
    heading, first, second = played.out.splitlines()
    assert heading.split() == ["RINGS", "LOCALLY"]
    assert first.startswith("1  2027-03-28 01:00:00 UTC")
    assert first.endswith("Sun 2027-03-28 03:00:00 +0200")
    assert second.endswith("Mon 2027-03-29 02:30:00 +0200")


def test_a_preview_in_json(play: Any) -> None:
    played = play(
        ["preview", "@yearly", "--tz", "Asia/Tokyo", "--from", "2027-03-27T12:00:00Z", "--count", "1", "--json"]
    )
    expected = {"number": 1, "at": "2027-12-31T15:00:00.000Z", "local": "2028-01-01T00:00:00+09:00"}
    assert json.loads(played.out) == expected


def test_a_preview_of_an_event(play: Any) -> None:
    preview = {"occurrences": [{"number": 4, "at": AT, "rings_at": "2126-11-20T10:01:00.000Z"}], "more": False}
    played = play(["preview", "--id", "a/b", "--count", "3"], Answer(200, preview))
    assert played.asked[0].target == "/v1/tenants/default/events/a%2Fb/preview?count=3"
    assert "4  2126-11-20 10:01:00 UTC" in played.out
    nothing = play(["preview", "--id", "a"], Answer(200, {"occurrences": [], "more": False}))
    assert "it never rings again" in nothing.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["preview"], "give a cron expression, or --id ID"),
        (["preview", "@daily", "--id", "x"], "give a cron expression, or --id ID"),
        (["preview", "--id", "x", "--tz", "UTC"], "--id goes with --count only"),
        (["preview", "0 0 30 2 *"], "never matches"),
        (["preview", "@daily", "--tz", "Mars/Olympus"], "is not a time zone"),
        (["schedule", "1", "--cron", "@daily", "--every", "1h"], "not allowed with"),
        (["schedule", "1", "--cron", "61 * * * *"], "'61' is not a minute"),
        (["schedule", "1", "--in", "5s", "--tz", "UTC", "--catch-up", "1h"], "--tz and --catch-up can only go with"),
    ],
)
def test_a_wrong_command_line_is_explained(play: Any, command: list[str], says: str) -> None:
    played = play(command)
    assert (played.code, played.asked) == (2, [])
    assert says in played.err


def test_schedule_sends_the_recurrence(play: Any) -> None:
    options = {
        "cron": "0 9 * * *",
        "tz": "Europe/Berlin",
        "gap": "after",
        "repeated": "twice",
        "count": 3,
        "until": "2127-01-01T00:00:00Z",
        "jitter": "5m",
        "misfire": "latest",
        "catch_up": "2h",
        "overlap": "skip",
    }
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    played = play(["schedule", *flags, "--to", "queue:q"], Answer(201, SCHEDULED))
    assert played.asked[0].json == {"payload": None, "to": "queue:q", "repeat": options}


def test_show_tells_about_recurrence(play: Any) -> None:
    out = play(["show", "report"], Answer(200, PAUSED)).out
    assert "paused; `everbell resume` lets it ring again" in out
    assert "0 9 * * * in Europe/Berlin, this is number 4 of 9, misfire latest" in out
    assert "1 times, missed 2, skipped 0 (2 late)" in out
    assert "since 2026-11-20T10:00:00.000Z: holidays" in out


def test_backfill(play: Any) -> None:
    asked = ["backfill", "report", "--from", "2026-10-01T00:00:00Z", "--until", "2026-10-02T00:00:00Z"]
    made = {"scheduled": 2, "existing": 1, "ids": ["a", "b", "c"], "errors": []}
    played = play(asked, Answer(200, made))
    assert played.asked[0].json == {"from": "2026-10-01T00:00:00Z", "until": "2026-10-02T00:00:00Z"}
    assert (played.code, played.out) == (0, "scheduled 2, 1 were there already\n")
    error = {"index": 2, "status": 409, "title": "T", "detail": "taken"}
    played = play([*asked, "--json"], Answer(200, made | {"ids": ["a", "b", None], "errors": [error]}))
    assert played.code == 1
    assert played.err == "everbell backfill: occurrence 3 of the range: taken\n"
