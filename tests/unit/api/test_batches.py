"""Batches: the good events are scheduled, the bad ones are named, and no batch is too much."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from everbell.api import batches
from everbell.api.batches import BatchApi
from everbell.core.batch_item import ItemSpec
from everbell.core.request import Handlers
from everbell.core.tenant import Tenants
from everbell.edge import batch_body, decode_errors
from everbell.edge.batch_body import NotPlain, ReadItem, read_batch, read_plain
from everbell.edge.drafting import Edge
from everbell.edge.turns import in_turns
from everbell.engine.requests import Schedule
from everbell.engine.seen import DraftResult
from everbell.errors import InvalidInput, NotOwner, OutcomeUnknown, StoreFull, TooLarge
from tests.scheduling import drafts_of
from tests.turns import turns_beside
from tests.unit.api.api_caller import EVENTS, SOON, Caller, called

BATCH = f"{EVENTS}/batch"
TASKS = "/v1/tenants/tasks/events"
GOOD = msgspec.json.encode(SOON)
LINES = "application/x-ndjson"
BOMB = b'{"in": 1, "to": "queue:a", "payload": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"


def read_all(body: bytes, events_max: int) -> list[ReadItem]:
    """All events of a batch. The places where other tasks should run are left out."""
    return [item for item in read_batch(body, events_max) if item is not None]


def named(*names: str) -> list[dict[str, Any]]:
    return [{**SOON, "id": name} for name in names]


def lines(*events: Any) -> bytes:
    return b"\n".join(event if isinstance(event, bytes) else msgspec.json.encode(event) for event in events)


@pytest.mark.parametrize("content_type", [LINES, "application/json", "application/jsonl", None])
@pytest.mark.parametrize(
    "body",
    [
        lines(*named("a", "b", "c")),
        lines(*named("a", "b", "c")) + b"\n",
        b"\n\n" + b"\r\n \n".join(map(msgspec.json.encode, named("a", "b", "c"))) + b"\r\n\r\n",
        msgspec.json.encode(named("a", "b", "c")),
        b" \n" + msgspec.json.format(msgspec.json.encode(named("a", "b", "c")), indent=2),
    ],
)
def test_lines_and_arrays_are_told_by_themselves(body: bytes, content_type: str | None) -> None:
    async def test(caller: Caller) -> None:
        headers = {} if content_type is None else {"content_type": content_type}
        answer = await caller.call("POST", BATCH, body, **headers)
        assert answer.status == 201
        assert answer.json == {"accepted": 3, "rejected": 0, "ids": ["a", "b", "c"], "errors": []}

    called(test)


@pytest.mark.parametrize("as_array", [True, False])
def test_the_good_are_accepted_and_the_bad_are_named(as_array: bool) -> None:
    bad = [{**SOON, "kee": 1}, {**SOON, "retry": {"backoff": "x"}}]
    events = [*named("a"), bad[0], *named("b"), bad[1]]

    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, events if as_array else lines(*events))
        assert answer.status == 207
        assert answer.content_type == "application/json"
        assert answer.json == {
            "accepted": 2,
            "rejected": 2,
            "ids": ["a", None, "b", None],
            "errors": [
                {
                    "index": 1,
                    "status": 422,
                    "title": "The request is not valid",
                    "detail": "kee: there is no such field; did you mean key?",
                    "field": "kee",
                },
                {
                    "index": 3,
                    "status": 422,
                    "title": "The request is not valid",
                    "detail": answer.json["errors"][1]["detail"],
                    "field": "retry.backoff",
                },
            ],
        }
        assert len((await caller.call("GET", EVENTS)).json["events"]) == 2

    called(test)


@pytest.mark.parametrize(
    ("bad", "status", "field"),
    [
        (b'{"in": 1, "to"', 400, None),
        (b"garbage", 400, None),
        (b'{"in": 1, "to": "queue:a", "key": "\xff"}', 400, None),
        (b'{"in": 1, "to": "queue:a", "payload": "\xff"}', 400, None),
        (BOMB, 400, None),
        (b"[]", 422, None),
        (b"5", 422, None),
        (b'{"in": 1, "to": "queue:a", "payload": "%s"}' % (b"x" * 1_000), 413, "payload"),
        (b'{"in": 1}', 422, "to"),
    ],
)
def test_a_broken_line_spoils_only_itself(bad: bytes, status: int, field: str | None) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, lines(*named("a"), bad, b"", *named("b")))
        assert answer.status == 207
        assert answer.json["ids"] == ["a", None, "b"]
        (error,) = answer.json["errors"]
        assert (error["index"], error["status"], error.get("field")) == (1, status, field)

    called(test)


@pytest.mark.parametrize("bad", [b'{"key": "\xff"}', b'{"in": 1, "to": "queue:a", "payload": "\xff"}', b"7"])
def test_a_bad_element_of_an_array_spoils_only_itself(bad: bytes) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, b"[" + b",".join((GOOD, bad, GOOD)) + b"]")
        assert (answer.status, answer.json["accepted"]) == (207, 2)
        assert answer.json["errors"][0]["index"] == 1

    called(test)


@pytest.mark.parametrize("body", [b"[" + GOOD, b"[" + GOOD + b"] x", b"[" + GOOD + b",]", b"[" + BOMB + b"]"])
def test_a_broken_array_is_broken_as_a_whole(body: bytes) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, body)
        assert (answer.status, answer.content_type) == (400, "application/problem+json")
        assert (await caller.call("GET", EVENTS)).json == {"events": []}

    called(test)


def test_nothing_accepted() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, [{}, {}])
        assert answer.status == 422
        assert (answer.json["accepted"], answer.json["rejected"], answer.json["ids"]) == (0, 2, [None, None])

    called(test)


@pytest.mark.parametrize("body", [b"", b"\n\n", b"  ", b"[]", b" [ ] "])
def test_an_empty_batch(body: bytes) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, body)
        assert (answer.status, answer.content_type) == (422, "application/problem+json")
        assert "empty" in answer.json["detail"]

    called(test)


@pytest.mark.parametrize(
    "body",
    [
        lines(*[SOON] * 6),
        msgspec.json.encode([SOON] * 6),
        lines(b"x", *[SOON] * 6),
        b"[" + b",".join([b"{}"] * 1_000) + b"]",
        b"[" + b",".join([b"0"] * 1_000) + b"]",
    ],
)
def test_too_many(body: bytes) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, body)
        assert answer.status == 413
        assert "more than 5" in answer.json["detail"]
        assert (await caller.call("GET", EVENTS)).json == {"events": []}

    called(test)


def test_blank_lines_are_not_too_many() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, b"\n" * 1_000 + GOOD + b"\n" * 100_000 + b"x")
        assert (answer.status, answer.json["accepted"], answer.json["rejected"]) == (207, 1, 1)

    called(test)


@pytest.mark.parametrize("size", [10, 30_000, 33_000, 70_000])
def test_lines_are_read_in_order_wherever_they_are_cut(size: int) -> None:
    texts = [msgspec.json.encode({**SOON, "id": f"e{number}", "payload": "x" * size}) for number in range(12)]
    texts[5] = b"{"
    read = read_all(b"\n".join(texts), 20)
    assert [one.id if isinstance(one, ItemSpec) else None for one in read] == [
        None if number == 5 else f"e{number}" for number in range(12)
    ]


@pytest.mark.parametrize("size", [10, 5_000, 15_000])
def test_plain_lines_are_read_as_all_others(size: int) -> None:
    texts = [
        msgspec.json.encode({"at": f"2030-01-01T00:00:{number:02}Z", "payload": "x" * size}) for number in range(12)
    ]
    pieces, read = list(read_plain(b"\n".join(texts))), iter(read_all(b"\n".join(texts), 12))
    assert b"".join(piece for piece, _ in pieces) == b"\n".join(texts)
    assert [(one.at, one.payload) for _, specs in pieces for one in specs] == [
        (one.at, one.payload) for one in read if isinstance(one, ItemSpec)
    ]


@pytest.mark.parametrize(
    "body",
    [
        lines(SOON, {"at": "2030-01-01T00:00:00Z", "key": "k"}),
        lines({"at": "2030-01-01T00:00:00Z"}, b"{"),
        lines({"at": 7}),
        lines({"at": "2030-01-01T00:00:00Z"}).replace(b"2030", b"203\xff"),
        msgspec.json.encode([{"at": "2030-01-01T00:00:00Z"}]),
        lines({"payload": "x" * 33_000}),
    ],
)
def test_a_batch_that_is_not_all_plain_takes_the_general_path(body: bytes) -> None:
    with pytest.raises(NotPlain):
        list(read_plain(body))


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"\n \n", 422), (lines(*[{"at": "2030-01-01T00:00:00Z", "to": "queue:a"}] * 6), 413)],
)
def test_a_batch_of_none_or_of_too_many_is_refused(body: bytes, status: int) -> None:
    async def test(caller: Caller) -> None:
        assert (await caller.call("POST", BATCH, body)).status == status

    called(test)


def test_an_event_with_many_braces_is_still_one() -> None:
    payload = [{"a": 1}] * 60

    async def test(caller: Caller) -> None:
        for body in (
            lines({**SOON, "payload": payload}, SOON),
            msgspec.json.encode([{**SOON, "payload": payload}, SOON]),
        ):
            assert (await caller.call("POST", BATCH, body)).json["accepted"] == 2

    called(test)


@pytest.mark.parametrize(
    ("start", "element", "end"),
    [(b"[", b"{},", b"{}]"), (b"[", b"0,", b"0]"), (b"", b"{}", b""), (b"", b"\n", b"{}"), (b"", b"{}\n", b"")],
)
def test_a_flood_is_refused_before_it_takes_memory(start: bytes, element: bytes, end: bytes) -> None:
    body = start + element * (4_000_000 // len(element)) + end
    tracemalloc.start()
    try:
        with suppress(TooLarge):
            assert len(read_all(body, 2_000)) == 1
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


def test_a_wrong_media_type() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, GOOD, content_type="text/csv")
        assert (answer.status, answer.json["field"]) == (415, "content-type")

    called(test)


def test_ids_that_are_taken() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="a")
        await caller.schedule(id="b", payload=1)
        answer = await caller.call("POST", BATCH, named("a", "b", "c", "c"))
        assert answer.status == 207
        assert answer.json["ids"] == ["a", None, "c", "c"]
        (error,) = answer.json["errors"]
        assert (error["index"], error["status"]) == (1, 409)

    called(test)


def test_the_trace_of_the_request_is_taken_over() -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def test(caller: Caller) -> None:
        await caller.call("POST", BATCH, named("a"), traceparent=trace)
        assert (await caller.call("GET", f"{EVENTS}/a")).json["traceparent"] == trace

    called(test)


def test_a_batch_of_plain_events() -> None:
    events = [
        {"at": f"2030-01-01T00:00:00.{number:03}Z", "to": "queue:work", "payload": number} for number in range(40)
    ]

    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", "/v1/tenants/homely/events/batch", lines(*events))
        assert (answer.status, answer.json["accepted"], answer.json["errors"]) == (201, 40, [])
        for number, event_id in enumerate(answer.json["ids"]):
            seen = (await caller.call("GET", f"/v1/tenants/homely/events/{event_id}")).json
            assert (seen["at"], seen["payload"], seen["to"]) == (events[number]["at"], number, "queue:work")

    called(test)


@pytest.mark.parametrize(
    ("spoiled", "field"),
    [
        ({"at": "2030-01-01"}, "at"),
        ({"to": "nowhere"}, "to"),
        ({"at": None}, "at"),
        ({"payload": "x" * 300_000}, "payload"),
    ],
)
def test_one_that_is_wrong_among_plain_ones_is_named(spoiled: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {"at": "2030-01-01T00:00:00Z", "to": "queue:work"}

    async def test(caller: Caller) -> None:
        batch = lines(*[good] * 33, {**good, **spoiled}, *[good] * 33)
        answer = await caller.call("POST", "/v1/tenants/homely/events/batch", batch)
        assert (answer.status, answer.json["accepted"]) == (207, 66)
        assert [(error["index"], error["field"]) for error in answer.json["errors"]] == [(33, field)]

    called(test)


class Full:
    """An engine that has room for a few only."""

    def __init__(self, caller: Caller, room: int) -> None:
        self._caller = caller
        self._room = room

    async def schedule(self, request: Schedule) -> list[DraftResult]:
        drafts = drafts_of(request)
        taken = await self._caller.engine.ask(Schedule(request.tenant, drafts[: self._room]))
        return [*taken, *[StoreFull("no room")] * (len(drafts) - self._room)]


def test_when_the_store_is_full_the_sender_is_not_blamed() -> None:
    async def test(caller: Caller) -> None:
        answers = []
        for room in (0, 1):
            handlers = Handlers(Schedule.by(Full(caller, room).schedule))
            full = Caller(caller.engine, caller.clock, handlers.ask)
            answers.append(await full.call("POST", BATCH, [*named("a", "b"), {}]))
        assert [answer.status for answer in answers] == [507, 207]
        assert [error["status"] for error in answers[1].json["errors"]] == [507, 422]

    called(test)


async def scattered(request: Schedule) -> list[DraftResult]:
    """Each draft fails in its own way."""
    return [NotOwner("moving"), OutcomeUnknown("the answer was lost"), NotOwner("moving")]


def test_an_unknown_outcome_of_one_event_is_that_of_the_batch() -> None:
    async def test(caller: Caller) -> None:
        failing = Caller(caller.engine, caller.clock, Handlers(Schedule.by(scattered)).ask)
        assert (await failing.call("POST", BATCH, named("a", "b", "c"))).status == 504

    called(test)


def test_reading_returns_each_event_or_its_error() -> None:
    read = read_all(lines(SOON, b"{", {"a": 1}), 10)
    assert [isinstance(one, ItemSpec) for one in read] == [True, False, False]
    assert all(isinstance(one, InvalidInput) for one in read[1:])


@pytest.mark.parametrize("in_array", [True, False])
def test_invalid_events_cost_no_more_than_valid_ones(in_array: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a batch of invalid events that is as long as it may be
    hints: list[str] = []

    def counted(name: str, names: list[str], count: int) -> list[str]:
        hints.append(name)
        return get_close_matches(name, names, count)

    monkeypatch.setattr(decode_errors, "get_close_matches", counted)
    events = [b'{"too":1}'] * 20_000
    body = b"[" + b",".join(events) + b"]" if in_array else b"\n".join(events)
    read, turns = asyncio.run(turns_beside(in_turns(read_batch(body, 20_000), 100)))

    # Then only the first errors suggest a name, and other tasks run in between.
    told = [str(error) for error in read]
    assert told[:20] == ["too: there is no such field; did you mean to?"] * 20
    assert set(told[20:]) == {"too: there is no such field"}
    assert len(hints) == 20
    assert turns >= 190


@pytest.mark.parametrize("element", [b'{"a":1}', b"[" * 50 + b"]" * 50])
def test_no_element_of_an_array_beyond_the_limit_is_decoded(element: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(text: bytes, hints: bool) -> InvalidInput:
        parsed.append(text)
        return InvalidInput("no")

    monkeypatch.setattr(batch_body, "_specs", SimpleNamespace(parse=parse))
    with pytest.raises(TooLarge):
        read_all(b"[" + b",".join([element] * 150_000) + b"]", 20_000)
    assert len(parsed) <= 20_001


def test_an_answer_names_the_first_errors_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", BATCH, [SOON, {"a": 1}, {"b": 1}, {"c": 1}])
        assert (answer.status, answer.json["accepted"], answer.json["rejected"]) == (207, 1, 3)
        assert [error["index"] for error in answer.json["errors"]] == [1, 2]
        assert answer.json["ids"][1:] == [None, None, None]

    monkeypatch.setattr(batches, "ERRORS_MAX", 2)
    called(test)


def test_other_tasks_run_while_costly_events_are_checked() -> None:
    async def test(caller: Caller) -> None:
        edge = Edge(Tenants(), caller.clock, allows_handlers=False)
        api = BatchApi(caller.engine.ask, edge)
        nested = {**SOON, "payload": [[[]] * 40_000]}
        cron = {**SOON, "repeat": {"cron": "1 2 * 3 SUNL", "tz": "Europe/Berlin"}}
        for event, turns_min in ((nested, 5), (cron, 3)):
            read = read_all(msgspec.json.encode([event] * 20), 20)
            _, turns = await turns_beside(api._items(read, "shop", None, None))
            assert turns >= turns_min

    called(test)


def test_items_replace_and_cancel() -> None:
    async def test(caller: Caller) -> None:
        await caller.call("POST", BATCH, named("a", "b"))
        items = [
            {**SOON, "mode": "put", "id": "a", "payload": 2},
            {**SOON, "mode": "put", "id": "new"},
            {"mode": "cancel", "id": "b"},
            {"mode": "cancel", "id": "nothing"},
            {**SOON, "mode": "create", "id": "c"},
        ]
        answer = await caller.call("POST", BATCH, items)
        assert answer.status == 201
        assert answer.json == {
            "accepted": 5,
            "rejected": 0,
            "ids": ["a", "new", "b", "nothing", "c"],
            "errors": [],
            "statuses": ["replaced", "created", "cancelled", "unknown", "created"],
        }
        assert (await caller.call("GET", f"{EVENTS}/a")).json["payload"] == 2
        assert (await caller.call("GET", f"{EVENTS}/b")).json["status"] == "cancelled"

    called(test)


def test_wrong_items_spoil_only_themselves() -> None:
    async def test(caller: Caller) -> None:
        items = [
            {**SOON, "mode": "put"},
            {**SOON, "mode": "cancel", "id": "a"},
            {"mode": "cancel"},
            {**SOON, "mode": "upsert", "id": "a"},
            {**SOON, "mode": "put", "id": "a"},
        ]
        answer = await caller.call("POST", BATCH, lines(*items))
        assert answer.status == 207
        assert answer.json["statuses"] == ["error"] * 4 + ["created"]
        assert [error["field"] for error in answer.json["errors"]] == ["id", "mode", "id", "mode"]

    called(test)


def test_the_identity_of_a_tenant_may_be_key_time_and_id() -> None:
    async def test(caller: Caller) -> None:
        task = {"to": "queue:a", "at": "2040-01-01T00:00:00+01:00", "key": "order,17", "id": "retry"}
        name = "order%2C17,2039-12-31T23:00:00.000Z,retry"
        assert (await caller.call("POST", TASKS, task)).json["id"] == name
        again = await caller.call("POST", TASKS, task)
        assert (again.status, again.json["id"]) == (200, name)
        later = {**task, "at": "2040-01-02T00:00:00+01:00"}
        answer = await caller.call(
            "POST", f"{TASKS}/batch", [{**task, "mode": "put", "payload": 1}, {**later, "mode": "put"}]
        )
        assert answer.json["statuses"] == ["replaced", "created"]
        gone = {name: task[name] for name in ("key", "at", "id")}
        answer = await caller.call("POST", f"{TASKS}/batch", [{**gone, "mode": "cancel"}, {"to": "queue:a", "in": 1}])
        assert (answer.json["ids"][0], answer.json["statuses"]) == (name, ["cancelled", "created"])
        refused = await caller.call("POST", TASKS, {"to": "queue:a", "in": 1, "id": "retry"})
        assert (refused.status, refused.json["field"]) == (422, "id")

    called(test)


BIG = {**SOON, "payload": [1] * 20_000}


@pytest.mark.parametrize(
    "body",
    [
        b"\n" * 4_000_000,
        msgspec.json.encode([BIG] * 100),
        lines(*[BIG] * 100),
        "\n".join(['{"a":"\u00e9"}'] * 300_000).encode(),
    ],
    ids=["blank lines", "an array of large events", "lines of large events", "invalid lines"],
)
def test_other_tasks_run_while_a_large_body_is_read(body: bytes) -> None:
    async def read() -> None:
        with suppress(InvalidInput):
            await in_turns(read_batch(body, 20_000), 50)

    _, turns = asyncio.run(turns_beside(read()))
    assert turns >= 10


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_an_event_that_is_far_too_large_is_refused_unread(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(caller: Caller) -> None:
        monkeypatch.setattr("everbell.edge.bodies.Body.parse", None)
        path = EVENTS if method == "POST" else f"{EVENTS}/e"
        answer = await caller.call(method, path, b'{"payload":[' + b"1," * 400_000 + b"1]}")
        assert answer.status == 413

    called(test)
