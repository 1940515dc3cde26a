"""Commands about many events, against a scripted server: their requests, page by page, and their output."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from everbell.cli.main import main
from tests.unit.cli.test_commands import AT, EVENT, Played
from tests.unit.client.scripted import Answer, ScriptedServer


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(command: str, *script: Any) -> Played:
        with ScriptedServer(*script) as server:
            code = main([*command.split(), "--server", server.url])
        printed = capsys.readouterr()
        return Played(code, printed.out, printed.err, server)

    return run


def test_cancel_goes_page_by_page(play: Any) -> None:
    pages = (
        Answer(200, {"cancelled": 2, "cursor": "c1"}),
        Answer(200, {"cancelled": 1}),
        Answer(200, {"cancelled": 0}),
    )
    played = play("cancel --tag t --to queue:q --id-prefix o --until 2126-01-01T00:00:00Z", *pages)
    query = "tag=t&to=queue%3Aq&id_prefix=o&until=2126-01-01T00%3A00%3A00Z&limit=1000"
    assert [(asked.method, asked.target) for asked in played.asked] == [
        ("DELETE", f"/v1/tenants/default/events?{query}"),
        ("DELETE", f"/v1/tenants/default/events?{query}&cursor=c1"),
        ("DELETE", f"/v1/tenants/default/events?{query}"),
    ], "the second search finds no event that moved meanwhile"
    assert (played.code, played.out) == (0, "cancelled 3 events\n")


def test_reschedule_finds_all_before_it_moves_any(play: Any) -> None:
    script = (
        Answer(200, {"events": [EVENT, EVENT | {"id": "b", "version": 4}], "cursor": "c"}),
        Answer(200, {"events": [EVENT]}),
        Answer(
            200,
            {
                "rescheduled": 1,
                "skipped": 1,
                "errors": [{"id": "b", "status": 412, "title": "", "detail": "it was changed"}],
            },
        ),
    )
    played = play("reschedule --tag t --by -2h", *script)
    assert [asked.method for asked in played.asked] == ["GET", "GET", "PATCH"]
    named = [{"id": "ev_1", "version": 1}, {"id": "b", "version": 4}]
    assert played.asked[2].json == {"by": "-2h", "events": named}
    assert (played.code, played.out) == (1, "rescheduled 1 event, left 1 as it was\n")
    assert "b: it was changed" in played.err


def test_one_event_is_moved_by_a_while(play: Any) -> None:
    played = play("reschedule ev_1 --by 2h", Answer(200, EVENT))
    assert played.asked[0].json == {"by": "2h"}
    assert played.code == 0


def test_redrive_at_a_rate(play: Any) -> None:
    played = play("redrive --all --to https://x.example/ --rate 0.5", Answer(200, {"redriven": 3, "errors": []}))
    assert played.asked[0].json == {"all": True, "to": "https://x.example/", "rate": 0.5}
    assert played.out == "redrove 3 events\n"


def test_discard(play: Any) -> None:
    played = play("discard --all", Answer(200, {"cancelled": 3}), Answer(200, {"cancelled": 0}))
    assert (played.asked[0].method, played.asked[0].target) == ("DELETE", "/v1/tenants/default/dead?limit=1000")
    assert played.out == "discarded 3 events\n"
    dead = EVENT | {"status": "dead"}
    played = play("discard ev_1", Answer(200, dead), Answer(200, dead | {"status": "cancelled"}))
    assert played.out == "discarded ev_1\n"
    alive = play("discard ev_1", Answer(200, EVENT))
    assert (alive.code, alive.out) == (1, "")
    assert alive.err == "everbell discard: ev_1: the event is scheduled, not dead; everbell cancel cancels it\n"


def test_unblock(play: Any) -> None:
    line = Answer(200, {"key": "k/1", "waiting": 2, "head": EVENT | {"status": "dead", "version": 3}})
    played = play("unblock k/1 --look", line)
    assert (played.asked[0].target, played.out) == (
        "/v1/tenants/default/keys/k%2F1",
        "ev_1 is dead; 2 events in line behind it\n",
    )
    played = play("unblock k/1", line, Answer(200, EVENT | {"status": "cancelled"}))
    assert (played.asked[1].method, played.asked[1].headers["if-match"]) == ("DELETE", '"3"')
    assert played.out == "ev_1 is cancelled; 2 events in line behind it\n"
    assert play("unblock k", Answer(200, {"key": "k", "waiting": 0})).code == 1


def test_forecast(play: Any) -> None:
    answer = {
        "from": AT,
        "per": "hour",
        "spans": [{"at": AT, "due": 1_000}, {"at": AT, "due": 0}],
        "overdue": 2,
        "oldest_overdue": "1m5s",
        "known_until": AT,
    }
    played = play("forecast --per hour --count 2 --all-tenants", Answer(200, answer))
    assert played.asked[0].target == "/v1/forecast?per=hour&count=2"
    assert played.out.splitlines() == [
        "overdue  2, the oldest for 1m5s",
        "2126-11-20 10:00  1,000  " + "█" * 40,
        "2126-11-20 10:00      0",
    ]
    assert "there may be more" in played.err
    assert play("forecast", Answer(200, answer)).asked[0].target == "/v1/tenants/default/forecast?per=minute&count=60"


def test_schedule_reads_the_output_of_export(play: Any) -> None:
    events = [
        EVENT | {"payload": {"n": 1.50}, "key": "k", "attempt_count": 3, "next_attempt_at": AT},
        EVENT | {"id": "mine", "payload": 2, "repeat": {"every": "30s", "count": 6}, "occurrence": 3},
        EVENT | {"status": "paused"},
    ]
    pages = (Answer(200, {"events": events[:1], "cursor": "c"}), Answer(200, {"events": events[1:]}))
    played = play("export --tag t", *pages)
    assert [asked.target for asked in played.asked] == [
        "/v1/tenants/default/events?tag=t&limit=1000",
        "/v1/tenants/default/events?tag=t&limit=1000&cursor=c",
    ]
    first, second = map(json.loads, played.out.splitlines())
    assert first == {"id": "export:ev_1", "to": "queue:q", "at": AT, "key": "k", "payload": {"n": 1.5}}
    assert second == {"id": "mine", "to": "queue:q", "at": AT, "payload": 2, "repeat": {"every": "30s", "count": 4}}
    assert "exported 2 events, left out 1 that is paused" in played.err


def test_hidden_payloads_are_not_exported_as_missing_ones(play: Any) -> None:
    played = play("export", Answer(200, {"events": [EVENT]}))
    assert played.out == ""
    assert "hides payloads" in played.err


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1", "utf-8"])
@pytest.mark.parametrize("command", ["export", "list --json"])
def test_no_locale_takes_anything_from_json(
    play: Any, monkeypatch: pytest.MonkeyPatch, command: str, encoding: str
) -> None:
    text = 'é ≤ \N{BELL} "quoted"'
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
    play(command, Answer(200, {"events": [EVENT | {"payload": text}]}))
    written = out.getvalue().decode()
    assert json.loads(written)["payload"] == text
    assert written.isascii() == (encoding != "utf-8")


def test_finished_events_are_exported_as_they_are(play: Any) -> None:
    done = EVENT | {"status": "delivered"}
    assert play("export --status delivered", Answer(200, {"events": [done]})).documents == [done]


@pytest.mark.parametrize(
    ("command", "query", "said"),
    [
        ("cancel --key k", "key=k", "would cancel 3 events"),
        ("discard --all", "status=dead", "would discard 3 events"),
        ("reschedule --key k --in 1h", "key=k", "would reschedule 3 events"),
        ("redrive --all --tag t", "tag=t&status=dead", "would redrive 3 events"),
    ],
)
def test_a_dry_run_counts_and_changes_nothing(play: Any, command: str, query: str, said: str) -> None:
    pages = (Answer(200, {"events": [EVENT, EVENT], "cursor": "c"}), Answer(200, {"events": [EVENT]}))
    played = play(f"{command} --dry-run", *pages)
    assert [asked.method for asked in played.asked] == ["GET", "GET"]
    path, _, found = played.asked[0].target.partition("?")
    assert path == "/v1/tenants/default/events"
    assert set(query.split("&")) <= set(found.split("&"))
    assert (played.code, played.out) == (0, said + "\n")


@pytest.mark.parametrize("command", ["cancel a", "discard a", "reschedule a --in 1h", "redrive a"])
def test_a_dry_run_of_named_events_is_refused(play: Any, command: str) -> None:
    played = play(f"{command} --dry-run")
    assert played.code == 2
    assert "everbell show ID" in played.err
