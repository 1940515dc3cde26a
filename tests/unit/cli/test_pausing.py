"""`everbell pause`, `resume` and `pauses`: requests, output and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.cli.test_recurring import EVENT, PAUSED, play
from tests.unit.client.scripted import Answer, problem

__all__ = ["play"]

PATH = "/v1/tenants/default/pauses"
QUEUE = {
    "what": "queue",
    "name": "mail",
    "since": "2026-11-20T10:00:00.000Z",
    "by": "n4wy6ylcmfrgg33",
    "note": "moving",
}
WHOLE = {"what": "tenant", "since": "2026-11-20T10:00:00.000Z", "by": "nobody", "until": "2126-11-20T10:00:00.000Z"}


def test_a_recurring_event(play: Any) -> None:
    played = play(["pause", "report", "--note", "holidays"], Answer(200, PAUSED))
    assert (played.asked[0].method, played.asked[0].json) == ("PATCH", {"paused": True, "note": "holidays"})
    assert "report is paused; everbell resume report" in played.out
    played = play(["resume", "report"], Answer(200, EVENT))
    assert played.asked[0].json == {"paused": False, "note": None}
    assert "report rings in " in played.out
    played = play(["pause", "report", "--json"], Answer(200, PAUSED))
    assert json.loads(played.out)["paused"]["note"] == "holidays"


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--queue", "mail", "--note", "moving"], {"what": "queue", "name": "mail", "note": "moving"}),
        (["--key", "order-17", "--for", "2h"], {"what": "key", "name": "order-17", "for": "2h"}),
        (["--target", "https://shop.example"], {"what": "target", "name": "https://shop.example"}),
        (["--whole-tenant", "--until", "2126-11-20T10:00:00Z"], {"what": "tenant", "until": "2126-11-20T10:00:00Z"}),
    ],
)
def test_pause_sends_its_object(play: Any, options: list[str], body: dict[str, str]) -> None:
    played = play(["pause", *options], Answer(201, QUEUE))
    assert (played.code, played.asked[0].method, played.asked[0].target) == (0, "POST", PATH)
    assert {name: value for name, value in played.asked[0].json.items() if value is not None} == body
    assert played.out == "queue mail is paused; everbell resume --queue mail lets it go on\n"


def test_pause_in_words_and_in_json(play: Any) -> None:
    played = play(["pause", "--whole-tenant"], Answer(201, WHOLE))
    assert played.out == (
        "the tenant is paused until 2126-11-20 10:00:00 UTC; everbell resume --whole-tenant lets it go on\n"
    )
    assert json.loads(play(["pause", "--queue", "mail", "--json"], Answer(201, QUEUE)).out) == QUEUE
    played = play(["pause", "--queue", "mail"], Answer(201, QUEUE | {"unheard": ["n2", "n3"]}))
    assert "n2, n3 gave no answer" in played.err


def test_resume(play: Any) -> None:
    played = play(["resume", "--queue", "mail"], Answer(200, QUEUE), Answer(200, {"pauses": [WHOLE]}))
    assert (played.asked[0].method, played.asked[0].target) == ("DELETE", f"{PATH}?what=queue&name=mail")
    assert played.out == "queue mail goes on\n"
    assert "still paused: the tenant" in played.err
    played = play(["resume", "--whole-tenant", "--json"], Answer(200, WHOLE), Answer(200, {"pauses": []}))
    assert played.asked[0].target == f"{PATH}?what=tenant"
    assert json.loads(played.out) == WHOLE
    played = play(["resume", "--key", "k"], problem(404, "not-found", "key 'k' is not paused"))
    assert (played.code, played.err) == (1, "everbell resume: key 'k' is not paused\n")


def test_pauses(play: Any) -> None:
    played = play(["pauses"], Answer(200, {"pauses": [QUEUE, WHOLE]}))
    heading, first, second = played.out.splitlines()
    assert heading.split() == ["WHAT", "NAME", "SINCE", "UNTIL", "BY", "NOTE"]
    assert first.split()[:2] == ["queue", "mail"]
    assert first.split()[-2:] == ["n4wy6ylcmfrgg33", "moving"]
    assert second.split()[0] == "tenant"
    played = play(["pauses", "--json"], Answer(200, {"pauses": [QUEUE, WHOLE]}))
    assert [json.loads(line) for line in played.out.splitlines()] == [QUEUE, WHOLE]
    played = play(["pauses"], Answer(200, {"pauses": []}))
    assert (played.out, played.err.strip()) == ("", "nothing of tenant default is paused")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["pause"], "give the ID of a recurring event, or one of --key"),
        (["resume"], "give the ID of a recurring event, or one of --key"),
        (["pause", "report", "--key", "k"], "give the ID of a recurring event, or one of --key"),
        (["pause", "--queue", "q", "--key", "k"], "not allowed with"),
        (["pause", "report", "--for", "2h"], "leave out --until and --for"),
        (["pause", "--queue", "q", "--for", "2"], "2 has no unit"),
        (["pause", "--queue", "q", "--for", "2h", "--until", "2126-11-20T10:00:00Z"], "not allowed with"),
        (["resume", "--queue", "q", "--note", "x"], "--note goes with a recurring event"),
    ],
)
def test_misuse(play: Any, command: list[str], says: str) -> None:
    played = play(command)
    assert (played.code, played.asked) == (2, [])
    assert says in played.err
