"""Rows become requests: in order for each id, with the API's checks, and held rather than lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from everbell.clock import SystemClock
from everbell.core.request import Request
from everbell.core.tenant import Limits, Tenant, Tenants
from everbell.edge.drafting import Edge
from everbell.engine.requests import Amend, Cancel, Get, Schedule
from everbell.errors import Conflict, InvalidInput, NotFound, Overloaded, Throttled
from everbell.http.address_guard import Guard
from everbell.outbox.hand_over import HandedOver, HandOver
from everbell.outbox.row import OutboxRow, RowReader
from everbell.outbox.settings import OutboxAddress, read_outbox
from tests.unit.engine.stage import Stage, play

EVENT = {"to": "queue:a", "in": "1h", "payload": 1}
OPEN = read_outbox("postgresql://db/app")
Answer = Callable[[Request[Any]], Any]


def row(seq: int, id: str, kind: str = "s", tenant: str | None = None, **fields: Any) -> OutboxRow:
    body = {"s": EVENT | fields, "r": fields, "c": None}[kind]
    return OutboxRow(seq, kind, tenant, id, 1_000, None if body is None else json.dumps(body))


class Recorder:
    """Answers requests, and remembers them."""

    def __init__(self, answer: Answer = lambda request: None) -> None:
        self.asked: list[Request[Any]] = []
        self._answer = answer

    def ask(self, request: Request[Any], /) -> Awaitable[Any]:
        self.asked.append(request)
        return self._reply(request)

    async def _reply(self, request: Request[Any]) -> Any:
        answer = self._answer(request)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(request, Schedule) and answer is None:
            return [draft.id for draft in request.body]  # type: ignore[union-attr]  # rows come as drafts
        return answer


def take(
    recorder: Recorder, *rows: OutboxRow, address: OutboxAddress = OPEN, tenant: Tenant | None = None
) -> HandedOver:
    reader = RowReader(address, Edge(Tenants(tenant), SystemClock(), allows_handlers=False), SystemClock())
    return asyncio.run(HandOver(recorder.ask, reader).take(rows, "box"))


def story(recorder: Recorder) -> list[Any]:
    return [
        [draft.id for draft in asked.body]  # type: ignore[union-attr]  # rows come as drafts
        if isinstance(asked, Schedule)
        else (type(asked).__name__, asked.id)  # type: ignore[attr-defined]  # a change of an event
        for asked in recorder.asked
    ]


def test_events_go_in_batches_and_the_rows_of_one_id_one_after_the_other() -> None:
    recorder = Recorder()
    handed = take(
        recorder, row(1, "a"), row(2, "b"), row(3, "a", "r", by="1h"), row(4, "c"), row(5, "a", "c"), row(6, "d")
    )
    assert story(recorder) == [["a", "b"], ["c"], ("Amend", "a"), ["d"], ("Cancel", "a")]
    assert sorted(handed.done) == [1, 2, 3, 4, 5, 6]
    assert (handed.events, handed.changes) == (4, 2)


def test_in_counts_from_the_call_of_the_function_and_a_change_carries_its_row() -> None:
    recorder = Recorder()
    take(recorder, row(1, "a"), row(7, "b", "r", **{"in": "2s"}))
    schedule, amend = recorder.asked
    assert isinstance(schedule, Schedule)
    assert isinstance(amend, Amend)
    assert schedule.body[0].due_at == 1_000 + 3_600_000  # type: ignore[index]  # rows come as drafts
    assert (amend.amendment.due_at, amend.amendment.mark) == (3_000, ("box", 7))


def test_a_bad_row_is_refused_with_the_reason_and_stops_no_other() -> None:
    recorder = Recorder()
    limits = Tenant(limits=Limits(payload_bytes=10))
    bad = OutboxRow(3, "s", None, "c", 0, "{nonsense")
    handed = take(recorder, row(1, "a"), row(2, "b", payload="x" * 20), bad, row(4, "d", "c"), tenant=limits)
    assert [one.seq for one, _ in handed.refused] == [2, 3]
    assert handed.refused[0][1] == "payload: has 22 bytes; the tenant's limit is 10"
    assert sorted(handed.done) == [1, 4]


def test_an_outbox_of_one_tenant_refuses_rows_of_others() -> None:
    recorder = Recorder()
    own = read_outbox("postgresql://db/app?tenant=shop")
    handed = take(recorder, row(1, "a"), row(2, "b", tenant="shop"), row(3, "c", tenant="other"), address=own)
    assert [asked.tenant for asked in recorder.asked] == ["shop"]  # type: ignore[attr-defined]  # one batch
    assert [(one.seq, why) for one, why in handed.refused] == [
        (3, "tenant: this outbox is for the events of 'shop', not of 'other'")
    ]


def test_a_tenant_that_cannot_be_served_waits_with_all_its_rows_and_others_go_on() -> None:
    def answer(request: Request[Any]) -> Any:
        if isinstance(request, Schedule) and request.tenant == "full":
            return ["a", Throttled("enough")]
        return None

    rows = [
        row(1, "a", tenant="full"),
        row(2, "b", tenant="full"),
        row(3, "a", "c", "full"),
        row(4, "d", tenant="other"),
    ]
    handed = take(Recorder(answer), *rows)
    assert sorted(handed.done) == [1, 4]
    assert handed.held["full"][0] == 2
    assert handed.refused == []


def test_changes_that_come_too_late_are_counted_and_those_that_are_refused_are_kept() -> None:
    def answer(request: Request[Any]) -> Any:
        if isinstance(request, Cancel):
            return Conflict("the event is already delivered") if request.id == "ended" else NotFound("no")
        if isinstance(request, Amend):
            return Conflict("the event is being delivered at this moment")
        assert isinstance(request, Get)
        return NotFound("no") if request.id == "ended" else type("SeenLive", (), {"live": object()})()

    handed = take(
        Recorder(answer),
        row(1, "ended", "c"),
        row(2, "never", "c"),
        row(3, "under way", "r", by="1h"),
        row(4, "ended", "r", by="1h"),
    )
    assert handed.late == 3
    assert [(one.seq, why) for one, why in handed.refused] == [(3, "the event is being delivered at this moment")]


def test_a_taken_id_is_refused_unless_the_outbox_made_it() -> None:
    recorder = Recorder(lambda request: [Conflict("taken")] * len(request.body))  # type: ignore[attr-defined]  # a batch
    handed = take(recorder, row(1, "mine"), row(2, "tx:1"))
    assert handed.done == [2]
    assert [one.seq for one, _ in handed.refused] == [1]


def test_a_failed_request_holds_its_rows() -> None:
    handed = take(Recorder(lambda request: Overloaded("busy")), row(1, "a"), row(2, "b", "c"))
    assert handed.done == []
    assert handed.held["default"][0] == 1
    handed = take(Recorder(lambda request: InvalidInput("wrong")), row(1, "a"))
    assert [why for _, why in handed.refused] == ["wrong"]


def test_a_row_with_a_closed_address_is_refused() -> None:
    edge = Edge(Tenants(), SystemClock(), allows_handlers=False, guard=Guard())
    hand_over = HandOver(Recorder().ask, RowReader(OPEN, edge, SystemClock()))
    spec = json.dumps({"to": "http://10.0.0.1/", "in": "1h"})
    handed = asyncio.run(hand_over.take([OutboxRow(1, "s", None, "e", 0, spec)], "box"))
    ((_, why),) = handed.refused
    assert "--allow-targets" in why


def test_a_row_that_comes_twice_changes_an_event_once() -> None:
    async def scene(stage: Stage) -> None:
        tenants = Tenants()
        reader = RowReader(OPEN, Edge(tenants, stage.clock, allows_handlers=False), stage.clock)
        hand_over = HandOver(stage.engine.ask, reader)
        now = stage.clock.now()
        rows = [
            OutboxRow(1, "s", None, "e", now, json.dumps(EVENT)),
            row(2, "e", "r", by="1h"),
            row(3, "e", "r", by="2h"),
        ]

        async def due_ms() -> int:
            seen = await stage.engine.ask(Get("default", "e"))
            return seen.event.due_at - now

        for some in (rows[:2], rows[:2], rows, rows[1:2], rows):
            handed = await hand_over.take(some, "box")
            assert sorted(handed.done) == [one.seq for one in some]
            assert handed.refused == []
        assert await due_ms() == 4 * 3_600_000

        # Another outbox has numbers of its own.
        await hand_over.take([row(2, "e", "r", by="1h")], "other box")
        await hand_over.take(rows, "box")
        assert await due_ms() == 5 * 3_600_000

    play(scene)
