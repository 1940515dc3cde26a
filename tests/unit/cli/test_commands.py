"""The commands against a scripted server: their requests, their output and their exit codes."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from everbell.cli.main import main
from everbell.clock import SystemClock
from everbell.core.time import format_instant
from tests.unit.client.scripted import Answer, HangUp, ScriptedServer, problem

AT = "2126-11-20T10:00:00.000Z"
SCHEDULED = {"id": "ev_1", "at": AT, "status": "scheduled", "version": 1}
EVENT = SCHEDULED | {
    "tenant": "default",
    "to": "queue:q",
    "occurrence": 1,
    "created_at": "2026-11-20T10:00:00.000Z",
    "attempt_count": 0,
}
DEAD = EVENT | {
    "id": "ev_2",
    "status": "dead",
    "key": "k",
    "tags": ["a", "b"],
    "headers": {"x-team": "orders"},
    "payload": {"order": 17},
    "retry": {"max_attempts": 3, "backoff": "2s", "max_backoff": "10m"},
    "repeat": {"every": "30s", "count": 6},
    "occurrence": 2,
    "expires": "2h",
    "reason": "gave up\x1b[2J",
    "attempt_count": 22,
    "attempts": [
        {"number": 21, "started_at": AT, "duration_ms": 35, "result": "failed", "reason": "HTTP 503", "code": 503},
        {"number": 22, "started_at": AT, "duration_ms": 10_000, "result": "timeout"},
    ],
}


class Played:
    """The output of a command, and its requests."""

    def __init__(self, code: int, out: str, err: str, server: ScriptedServer) -> None:
        self.code = code
        self.out = out
        self.err = err
        self.asked = server.asked

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


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


def test_schedule_sends_everything(play: Any) -> None:
    command = (
        """schedule {"order":17} --in 20m --to queue:q --id mine --key k --tag a --tag b --header x-team:orders"""
        " --every 30s --count 6 --until 2127-01-01T00:00:00Z --retry-attempts 3 --expires 2h"
        " --tenant shop --token sesame"
    )
    played = play(command.split(), Answer(201, SCHEDULED))
    (asked,) = played.asked
    assert asked.target == "/v1/tenants/shop/events"
    assert asked.headers["authorization"] == "Bearer sesame"
    assert asked.json == {
        "payload": {"order": 17},
        "in": "20m",
        "to": "queue:q",
        "id": "mine",
        "key": "k",
        "tags": ["a", "b"],
        "headers": {"x-team": "orders"},
        "repeat": {"every": "30s", "count": 6, "until": "2127-01-01T00:00:00Z"},
        "retry": {"max_attempts": 3},
        "expires": "2h",
    }
    assert (played.code, played.err) == (0, "")
    assert played.out.startswith("ev_1 rings in ")
    assert played.out.endswith(", at 2126-11-20 10:00:00 UTC\n")


def test_schedule_says_it_in_json(play: Any) -> None:
    played = play(["schedule", "1", "--at", "2126-11-20T10:00:00Z", "--json"], Answer(201, SCHEDULED))
    assert played.documents == [SCHEDULED | {"created": True}]
    assert played.asked[0].json == {"payload": 1, "at": "2126-11-20T10:00:00Z"}


def test_nothing_needs_no_unit(play: Any) -> None:
    played = play(["schedule", "--in", "0", "--to", "queue:q"], Answer(201, SCHEDULED))
    assert played.asked[0].json == {"payload": None, "in": "0s", "to": "queue:q"}


def test_repeating_alone_begins_after_one_interval(play: Any) -> None:
    played = play(["schedule", "--every", "30s", "--to", "queue:q"], Answer(201, SCHEDULED))
    assert played.asked[0].json == {"payload": None, "in": "30s", "to": "queue:q", "repeat": {"every": "30s"}}


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_payload_is_read_from_elsewhere(
    play: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    path = tmp_path / "order.json"
    path.write_text('{"order": 17}\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    argument = f"@{path}" if source == "file" else "-"
    played = play(["schedule", argument, "--in", "5s"], Answer(201, SCHEDULED))
    assert played.asked[0].json == {"payload": {"order": 17}, "in": "5s"}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("schedule 1", "say when: --in 20m"),
        ("schedule 1 --in 5", "5 has no unit; write 5s, 5m or 5h"),
        ("schedule 1 --in 5s --at 2126-01-01T00:00:00Z", "not allowed with"),
        ("schedule 1 --at 2126-01-01T00:00:00", "has no offset"),
        ("schedule hello --in 5s", "the payload is not JSON"),
        ("schedule 1 --in 5s --count 3", "give one of them too"),
        ("schedule 1 --in 5s --header nonsense", "is not a header"),
        ("schedule 1 --in 5s --lines", "--lines needs a file"),
        ("schedule @x.ndjson --id mine", "put an id on each line"),
        ("list --status gone", "invalid choice"),
        ("list --limit 0", "'0' is not a number of at least 1"),
        ("list --limit 3 --all", "not allowed with"),
        ("list --stat dead", "there is no option --stat, did you mean --status?"),
        ("list --xyzzy", "there is no option --xyzzy; see"),
        ("reschedule a b --in 5s", "'b' is one argument too many"),
        ("list --tenant a/b", "a tenant's name has"),
        ("show", "required: ID"),
        ("cancel", "name events by ID"),
        ("cancel x --key k", "name events by ID"),
        ("discard", "name dead events by ID"),
        ("discard x --all", "name dead events by ID"),
        ("reschedule x --tag t --by 2h", "name one event by ID"),
        ("reschedule --tag t --by 2h --version 3", "--version goes with an ID"),
        ("reschedule x --by 0s", "must be longer than nothing"),
        ("redrive --all --rate 0", "'0' is not a number above 0"),
        ("reschedule x", "one of the arguments --in --at --by is required"),
        ("redrive", "name dead events by ID, or say --all"),
        ("redrive x --all", "name dead events by ID, or say --all"),
        ("redrive x --key k", "name dead events by ID, or say --all"),
    ],
)
def test_a_wrong_command_line_is_explained_on_one_line(play: Any, command: str, says: str) -> None:
    played = play(command.split())
    assert played.code == 2
    assert says in played.err
    assert played.err.count("\n") == 1
    assert f"see everbell {command.split()[0]} --help" in played.err
    assert (played.out, played.asked) == ("", [])


def test_text_that_is_no_json_gets_its_quotes_shown(play: Any) -> None:
    assert """write '"hello"'""" in play(["schedule", "hello", "--in", "5s"]).err


def test_a_file_of_events_is_scheduled(play: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text('{"payload": 1, "in": "5s"}\nnonsense\n{"payload": 2}\n')
    error = {"index": 1, "status": 422, "title": "T", "detail": "at: give at or in", "field": "at"}
    answer = Answer(207, {"accepted": 1, "rejected": 1, "ids": ["ev_1", None], "errors": [error]})
    played = play(["schedule", f"@{path}", "--to", "queue:q"], answer)
    assert played.asked[0].body == b'{"payload":1,"in":"5s","to":"queue:q"}\n{"payload":2,"to":"queue:q"}'
    assert played.code == 1
    assert played.out == "scheduled 1 events, refused 2\n"
    complaints = played.err.splitlines()
    assert complaints[0].startswith("everbell schedule: line 2: is not JSON")
    assert complaints[1:] == ["everbell schedule: line 3: at: give at or in"]


def test_a_file_of_events_is_reported_line_by_line_in_json(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"in": "5s"}\nnonsense\n')))
    answer = Answer(201, {"accepted": 1, "rejected": 0, "ids": ["ev_1"], "errors": []})
    played = play(["schedule", "-", "--lines", "--json"], answer)
    assert played.documents[0] == {"line": 1, "id": "ev_1", "status": "created"}
    assert played.documents[1]["line"] == 2
    assert played.code == 1


def test_only_the_first_refusals_are_shown(play: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("nonsense\n" * 50)
    played = play(["schedule", f"@{path}"])
    assert played.err.count("is not JSON") == 20
    assert "more lines were refused; --json names them all" in played.err
    assert played.out == "scheduled 0 events, refused 50\n"


def test_a_run_that_is_cut_off_says_how_far_it_came(play: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text('{"payload": 1, "in": "5s"}\n' * 1_500)
    answer = Answer(201, {"accepted": 1_000, "rejected": 0, "ids": ["x"] * 1_000, "errors": []})
    played = play(["schedule", f"@{path}"], answer, HangUp())
    assert played.code == 3
    assert "stopped after 1000 lines, of which 1000 were scheduled" in played.err
    assert "Whether the request was carried out is unknown" in played.err


def test_list_prints_a_table(play: Any) -> None:
    due = format_instant(SystemClock().now() + 3_600_000)
    later = EVENT | {"at": due}
    played = play(["list"], Answer(200, {"events": [later, DEAD]}))
    assert played.asked[0].target == "/v1/tenants/default/events?limit=50"
    heading, first, second = played.out.splitlines()
    assert heading.split() == ["ID", "STATUS", "DUE", "TO", "KEY", "TRIES"]
    assert first.split() == ["ev_1", "scheduled", "in", "1h", "queue:q"]
    assert second.split()[-2:] == ["k", "22"]
    assert first.index("queue:q") == heading.index("TO") == second.index("queue:q")


def test_list_filters_and_says_that_there_is_more(play: Any) -> None:
    command = "list --status dead --key k --tag t --from 2026-01-01T00:00:00Z --until 2027-01-01T00:00:00Z --limit 1"
    played = play(command.split(), Answer(200, {"events": [DEAD], "cursor": "c"}))
    assert played.asked[0].target == (
        "/v1/tenants/default/events?status=dead&key=k&tag=t"
        "&from=2026-01-01T00%3A00%3A00Z&until=2027-01-01T00%3A00%3A00Z&limit=1"
    )
    assert played.err == "the first 1; --all shows all\n"


def test_list_goes_through_all_pages(play: Any) -> None:
    pages = (Answer(200, {"events": [EVENT], "cursor": "c"}), Answer(200, {"events": [DEAD]}))
    played = play(["list", "--all", "--json"], *pages)
    assert [event["id"] for event in played.documents] == ["ev_1", "ev_2"]
    assert played.documents[1]["payload"] == {"order": 17}
    assert [asked.target.partition("?")[2] for asked in played.asked] == ["limit=1000", "limit=1000&cursor=c"]


def test_list_fills_up_a_page_that_came_short(play: Any) -> None:
    pages = (Answer(200, {"events": [], "cursor": "c"}), Answer(200, {"events": [DEAD]}))
    assert [event["id"] for event in play(["list", "--json"], *pages).documents] == ["ev_2"]


def test_an_empty_list_says_so(play: Any) -> None:
    played = play(["list"], Answer(200, {"events": []}))
    assert (played.code, played.out, played.err) == (0, "", "nothing matches\n")


def test_show_tells_everything(play: Any) -> None:
    played = play(["show", "ev_2"], Answer(200, DEAD))
    out = played.out
    assert "dead; `everbell redrive` gives it another chance" in out
    assert '{"order":17}' in out
    assert "every 30s, this is number 2 of 6" in out
    assert "3 attempts, pauses of 2s to 10m" in out
    assert "x-team: orders" in out
    assert "2h after it is due" in out
    assert "(20 earlier ones are not kept)" in out
    assert "\x1b" not in out
    first, second = out.splitlines()[-2:]
    assert first.split() == ["#21", "2126-11-20", "10:00:00", "UTC", "35ms", "failed", "503", "HTTP", "503"]
    assert second.split()[-2:] == ["10s", "timeout"]


def test_a_number_that_python_cannot_read_is_shown_as_infinite(play: Any) -> None:
    odd = EVENT | {"id": "ev_2", "payload": Raw(b'{"order": 1e400, "name": "\xc3\xa9"}')}
    assert '{"order":Infinity,"name":"é"}' in play(["show", "ev_2"], Answer(200, odd)).out
    listed = play(["list", "--json"], Answer(200, {"events": [EVENT, odd]})).documents
    assert [event["id"] for event in listed] == ["ev_1", "ev_2"]


def test_show_goes_on_after_one_that_is_missing(play: Any) -> None:
    played = play(
        ["show", "x", "ev_1", "--json"], problem(404, "not-found", "there is no event 'x'"), Answer(200, EVENT)
    )
    assert played.code == 1
    assert played.err == "everbell show: there is no event 'x'\n"
    assert played.documents == [EVENT]


def test_cancel_by_id(play: Any) -> None:
    late = problem(409, "conflict", "the event is already delivered")
    played = play(["cancel", "ev_1", "x"], Answer(200, EVENT | {"status": "cancelled"}), late)
    assert played.code == 1
    assert played.out == "cancelled ev_1\n"
    assert played.err == "everbell cancel: x: the event is already delivered\n"


def test_cancel_by_key_and_tag(play: Any) -> None:
    no_more = Answer(200, {"cancelled": 0})
    played = play(["cancel", "--key", "k", "--tag", "t"], Answer(200, {"cancelled": 1_234}), no_more)
    assert played.out == "cancelled 1,234 events\n"
    as_json = play(["cancel", "--key", "k", "--json"], Answer(200, {"cancelled": 1}), no_more)
    assert as_json.documents == [{"cancelled": 1}]


def test_reschedule(play: Any) -> None:
    played = play(["reschedule", "ev_1", "--in", "20m", "--version", "3"], Answer(200, EVENT))
    assert (played.asked[0].json, played.asked[0].headers["if-match"]) == ({"in": "20m"}, '"3"')
    assert played.out.startswith("ev_1 rings in ")


def test_snooze(play: Any) -> None:
    played = play(["snooze", "ev_1", "10m", "--version", "3"], Answer(200, EVENT))
    assert (played.asked[0].json, played.asked[0].headers["if-match"]) == ({"by": "10m"}, '"3"')
    assert played.out.startswith("ev_1 rings in ")


def test_redrive(play: Any) -> None:
    error = {"id": "x", "status": 409, "title": "T", "detail": "the event is not dead"}
    played = play(["redrive", "ev_2", "x"], Answer(200, {"redriven": 1, "errors": [error]}))
    assert (played.code, played.out) == (1, "redrove 1 event\n")
    assert played.err == "everbell redrive: x: the event is not dead\n"
    played = play(["redrive", "--all", "--tag", "t", "--json"], Answer(200, {"redriven": 3, "errors": []}))
    assert played.asked[0].json == {"all": True, "tag": "t"}
    assert played.documents == [{"redriven": 3, "errors": []}]


def test_a_refusal_is_one_line_and_exit_code_1(play: Any) -> None:
    played = play(["schedule", "1", "--in", "5s"], problem(422, "invalid", "to: is missing", field="to"))
    assert (played.code, played.out, played.err) == (1, "", "everbell schedule: to: is missing\n")


def test_an_unreachable_server_is_exit_code_3(capsys: pytest.CaptureFixture[str], port: int) -> None:
    assert main(["list", "--server", f"http://127.0.0.1:{port}"]) == 3
    assert "Nothing was sent: check the address, and that the server runs" in capsys.readouterr().err


def test_the_environment_names_the_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(Answer(200, {"events": []})) as server:
        monkeypatch.setenv("EVERBELL_SERVER", server.url)
        monkeypatch.setenv("EVERBELL_TENANT", "shop")
        monkeypatch.setenv("EVERBELL_TOKEN", "sesame")
        assert main(["list"]) == 0
    assert server.asked[0].target == "/v1/tenants/shop/events?limit=50"
    assert server.asked[0].headers["authorization"] == "Bearer sesame"
    monkeypatch.setenv("EVERBELL_SERVER", "nonsense")
    assert main(["list"]) == 2
    assert "write http:// or https://" in capsys.readouterr().err


def test_a_reader_that_went_away_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    before = sys.stdout
    try:
        sys.stdout = open(writing, "w")  # noqa: SIM115 - it stands in for a pipe
        with ScriptedServer(Answer(200, {"events": [EVENT] * 50})) as server:
            assert main(["list", "--server", server.url]) == 141
        sys.stdout.close()
    finally:
        sys.stdout = before


def test_a_missing_key_leads_to_advice(play: Any) -> None:
    played = play(["list"], problem(401, "unauthorized", "this server wants an access key"))
    assert played.code == 1
    assert played.err == (
        "everbell list: this server wants an access key; here that is --token, or better EVERBELL_TOKEN\n"
    )


@pytest.mark.parametrize(("to", "awaited"), [("queue:mail", "a worker"), ("https://shop.example/", "its turn")])
def test_show_names_the_reason_why_an_event_waits(play: Any, to: str, awaited: str) -> None:
    late = EVENT | {"to": to, "at": "2001-01-01T00:00:00Z"}
    assert f"scheduled, waits for {awaited} since " in play(["show", "ev_1"], Answer(200, late)).out


def test_deliver_and_its_trial(play: Any) -> None:
    assert play(["deliver", "ev_1"], Answer(200, EVENT)).out == "ev_1 rings now\n"
    fine = play(["deliver", "ev_1", "--dry-run"], Answer(200, {"outcome": {"result": "delivered", "code": 204}}))
    assert (fine.code, fine.out) == (0, "ev_1: delivered, 204\n")
    failed = Answer(200, {"outcome": {"result": "failed", "reason": "HTTP 503\x1b", "code": 503}})
    played = play(["deliver", "ev_1", "--dry-run"], failed)
    assert played.code == 1
    assert "\x1b" not in played.out
    assert play(["deliver", "ev_1", "--dry-run", "--json"], failed).documents[0]["code"] == 503
