"""Many events: how they are cut into batches, and how answers are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from everbell.client import batches
from everbell.client.answers import BatchResult, Rejection, together
from everbell.client.batches import BatchCalls
from everbell.client.call import Call
from everbell.errors import Conflict, InvalidInput, MalformedInput

GOOD = {"payload": 1, "in": "5s"}
BAD = {"payload": object()}


class Batching(BatchCalls):
    """The calls of a client of one tenant, without the client."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant


def played(events: Iterable[Mapping[str, Any]], batch: int = 1_000) -> list[BatchResult]:
    """The results, when a server accepts all that it is sent."""
    results = []
    for part in Batching("t")._batches(events, batch=batch):
        if isinstance(part, Call):
            count = part.body.count(b"\n") + 1
            ids = [f"id{n}" for n in range(count)]
            part = part.parse(201, msgspec.json.encode({"accepted": count, "rejected": 0, "ids": ids, "errors": []}))
        results.append(part)
    return results


def test_batches_are_bounded_by_number() -> None:
    assert [len(batch.ids) for batch in played([GOOD] * 5, batch=2)] == [2, 2, 1]
    assert played([]) == []


def test_batches_are_bounded_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES_MAX", 100)
    events = [{"payload": "x" * 60}] * 3 + [{"payload": "y" * 200}] + [{"payload": 1}]
    assert [len(batch.ids) for batch in played(events)] == [1, 1, 1, 1, 1]


def test_a_batch_goes_out_as_lines() -> None:
    (call,) = Batching("a/b")._batches([GOOD, {"in_": 3}])
    assert isinstance(call, Call)
    assert (call.method, call.path, call.content_type) == (
        "POST",
        "/v1/tenants/a%2Fb/events/batch",
        "application/x-ndjson",
    )
    assert call.body == b'{"payload":1,"in":"5s"}\n{"in":3}'


def test_a_batch_may_be_repeated_when_every_event_has_an_id() -> None:
    with_id = {**GOOD, "id": "mine"}
    (safe,) = Batching("t")._batches([with_id, with_id])
    (unsafe,) = Batching("t")._batches([with_id, GOOD])
    assert isinstance(safe, Call)
    assert safe.repeatable
    assert isinstance(unsafe, Call)
    assert not unsafe.repeatable


def test_an_event_that_cannot_be_sent_is_refused_in_its_place() -> None:
    (batch,) = played([GOOD, BAD, GOOD])
    assert batch.ids == ["id0", None, "id1"]
    assert [refusal.index for refusal in batch.refused] == [1]
    assert batch.accepted == 2
    assert isinstance(batch.refused[0].error, InvalidInput)


def test_nothing_is_sent_when_nothing_can_be() -> None:
    (batch,) = Batching("t")._batches([BAD, BAD])
    assert isinstance(batch, BatchResult)
    assert (batch.ids, batch.accepted, [refusal.index for refusal in batch.refused]) == ([None, None], 0, [0, 1])


def test_refusals_of_the_server_are_told_by_their_place_among_all() -> None:
    parts = list(Batching("t")._batches([GOOD, GOOD, BAD, GOOD, GOOD], batch=3))
    second = parts[1]
    assert isinstance(second, Call)
    error = {"index": 1, "status": 409, "title": "T", "detail": "is taken"}
    answer = {"accepted": 1, "rejected": 1, "ids": ["a", None], "errors": [error]}
    batch = second.parse(207, msgspec.json.encode(answer))
    assert batch.ids == ["a", None]
    assert batch.refused == [Rejection(4, 409, "T", "is taken")]
    assert isinstance(batch.refused[0].error, Conflict)


def test_events_that_the_server_rejected_without_naming_them_are_among_the_refused() -> None:
    (call,) = Batching("t")._batches([GOOD, GOOD, GOOD])
    assert isinstance(call, Call)
    error = {"index": 1, "status": 409, "title": "T", "detail": "is taken"}
    answer = {"accepted": 1, "rejected": 2, "ids": ["a", None, None], "errors": [error]}
    batch = call.parse(207, msgspec.json.encode(answer))
    assert [(refusal.index, refusal.status) for refusal in batch.refused] == [(1, 409), (2, 422)]
    assert "in a smaller batch" in batch.refused[1].title


def test_none_accepted_is_a_result_and_a_problem_is_not() -> None:
    (call,) = Batching("t")._batches([GOOD])
    assert isinstance(call, Call)
    assert 422 in call.also
    error = {"index": 0, "status": 422, "title": "T", "detail": "in: odd", "field": "in"}
    batch = call.parse(422, msgspec.json.encode({"accepted": 0, "rejected": 1, "ids": [None], "errors": [error]}))
    assert str(batch.refused[0].error) == "in: odd"
    with pytest.raises(MalformedInput):
        call.parse(422, b'{"type": "https://everbell.dev/problems/malformed", "detail": "broken"}')


def test_batches_add_up() -> None:
    one = BatchResult(["a", None], [Rejection(1, 422)], ["replaced", "error"])
    other = BatchResult(["b"], (), ["unknown"])
    whole = BatchResult(["a", None, "b"], [Rejection(1, 422)], ["replaced", "error", "unknown"])
    assert together([one, other]) == whole
