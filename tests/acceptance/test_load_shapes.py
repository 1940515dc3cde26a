"""Loads of difficult shapes: herds, backlogs, targets that are down for long, and broken events."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from rocksdict import Options, Rdict

from tests.acceptance.load import instant
from tests.acceptance.machine import Machine, now_ms, until
from tests.acceptance.receiver import Receiver

MIB = 1 << 20
HERD = 20_000
PART = 5_000
SMALL = ("--memory", "4MiB")
PAYLOAD = "x" * 1_000
SOON = {"max_attempts": 1_000, "backoff": "50ms", "max_backoff": "500ms"}
TENANTS = """
[tenants.herd]
in_flight = 32
"""


def schedule_herd(machine: Machine, events: list[dict[str, object]], tenant: str) -> None:
    for start in range(0, len(events), PART):
        machine.schedule_many(events[start : start + PART], tenant)


class Watch:
    """The maximum number of events in memory of a machine, seen from outside."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rss_before = machine.rss_bytes()
        self.counted = 0
        self.rss_growth = 0

    def look(self) -> bool:
        self.counted = max(self.counted, self._machine.metric("in_memory_bytes"))
        self.rss_growth = max(self.rss_growth, self._machine.rss_bytes() - self._rss_before)
        return True


def test_a_herd_fits_into_a_small_memory_and_delays_no_other_tenant(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path, *SMALL, config=TENANTS) as machine:
        at = instant(now_ms() + 4_000)
        herd: list[dict[str, object]] = [
            {"at": at, "to": receiver.url("/slow/1", "127.0.0.2"), "payload": [number, PAYLOAD]}
            for number in range(HERD)
        ]
        schedule_herd(machine, herd, "herd")
        watch = Watch(machine)
        until(lambda: watch.look() and receiver.counts["/slow/1"] > 500, "the first events of the herd are delivered")
        others = [machine.schedule(receiver.url("/ok"), tenant="calm") for _ in range(20)]
        for event_id in others:
            machine.until_status(event_id, "delivered", "calm")
        gone = receiver.counts["/slow/1"]
        assert gone < HERD, "the herd was delivered before the other tenant's event"
        until(
            lambda: watch.look() and receiver.counts["/slow/1"] >= HERD,
            lambda: f"the herd drained, {receiver.counts['/slow/1']}",
        )
        until(lambda: machine.metric("in_flight") == 0, "no attempt is in flight")
        assert watch.counted <= 4 * MIB
        assert watch.rss_growth < 120 * MIB
        numbers = [json.loads(each.body)[0] for each in receiver.on("/slow/1")]
        assert sorted(numbers) == list(range(HERD)), "each event has to arrive once"


def test_a_backlog_is_delivered_oldest_first(tmp_path: Path) -> None:
    """Twenty thousand events became due while the server was stopped; each target gets the oldest first."""
    with Receiver() as receiver, Machine(tmp_path, *SMALL, config=TENANTS) as machine:
        first_at = now_ms() + 3_000
        places = list(range(HERD))
        Random(1).shuffle(places)
        backlog: list[dict[str, object]] = [
            {
                "at": instant(first_at + place // 20),
                "to": receiver.url("/ok", f"127.0.0.{2 + place % 2}"),
                "payload": place,
            }
            for place in places
        ]
        schedule_herd(machine, backlog, "herd")
        assert machine.stop() == 0
        until(lambda: now_ms() > first_at + HERD // 20, "all are past due")
        machine.start()
        watch = Watch(machine)
        until(
            lambda: watch.look() and receiver.counts["/ok"] >= HERD, lambda: f"all delivered, {receiver.counts['/ok']}"
        )
        last_epoch = max(each.epoch for each in receiver.received)
        late = [json.loads(each.body) for each in receiver.received if each.epoch == last_epoch]
        for target in (0, 1):
            mine = [place for place in late if place % 2 == target]
            displaced = [abs(here - there) for here, there in zip(mine, sorted(mine), strict=True)]
            # Oldest first, in steps: in a random order, each event would be displaced by a third of the herd, on
            # average.
            assert sum(displaced) / len(displaced) < HERD / 10
            assert max(mine[: len(mine) // 10]) < HERD / 2


def test_a_target_that_was_down_gets_all_events_in_order(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path, *SMALL) as machine:
        receiver.go_down()
        events: list[dict[str, object]] = [
            {"in": 0, "to": receiver.url("/ok"), "payload": [number, PAYLOAD], "retry": SOON, "key": f"k{number % 7}"}
            if number % 2
            else {"in": 0, "to": receiver.url("/ok"), "payload": [number, PAYLOAD], "retry": SOON}
            for number in range(6_000)
        ]
        watch = Watch(machine)
        schedule_herd(machine, events, "shop")
        until(lambda: watch.look() and machine.metric("retried_total") > 2_000, "many tries")
        receiver.come_up()
        until(
            lambda: watch.look() and len(receiver.received) >= len(events),
            lambda: f"all delivered, {len(receiver.received)}",
        )
        until(lambda: machine.count("shop", "scheduled") == 0, "no event is scheduled any more")
        numbers = [json.loads(each.body)[0] for each in receiver.received]
        assert sorted(numbers) == list(range(len(events)))
        for key in range(7):
            keyed = [number for number in numbers if number % 2 and number % 7 == key]
            assert keyed == sorted(keyed)
        assert watch.counted <= 4 * MIB
        assert watch.rss_growth < 120 * MIB


def test_an_unreadable_row_is_set_aside_and_its_neighbours_are_delivered(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path, "--partitions", "1") as machine:
        at = instant(now_ms() + 3_000)
        ids = machine.schedule_many([{"at": at, "to": receiver.url("/ok"), "payload": n} for n in range(50)])
        assert machine.stop() == 0
        poisoned = spoil_rows(machine.store, [10, 11, 30])
        machine.start()
        healthy = [event_id for number, event_id in enumerate(ids) if number not in (10, 11, 30)]
        for event_id in healthy:
            machine.until_status(event_id, "delivered")
        machine.until_status(machine.schedule(receiver.url("/ok")), "delivered")
        assert sorted(json.loads(each.body) for each in receiver.received[:47]) == sorted(set(range(50)) - {10, 11, 30})
        assert machine.stop() == 0
        assert rows(machine.store, b"X") == {b"X" + place: GARBAGE for place in poisoned}


GARBAGE = b"\x01\xc1 not an event"


def rows(store: Path, prefix: bytes) -> dict[bytes, bytes]:
    """The rows of a closed store, by the first byte of their keys."""
    db = Rdict(str(store), Options(raw_mode=True))
    try:
        found: list[tuple[Any, Any]] = list(db.items())
        return {key: row for key, row in found if key.startswith(prefix)}
    finally:
        db.close()


def spoil_rows(store: Path, numbers: list[int]) -> list[bytes]:
    """Replace some events with garbage; returns their keys."""
    places = sorted(rows(store, b"E"))
    db = Rdict(str(store), Options(raw_mode=True))
    try:
        for number in numbers:
            db[places[number]] = GARBAGE
        return [places[number] for number in numbers]
    finally:
        db.close()


def test_an_event_that_is_too_large_or_no_json_is_refused_and_its_neighbours_are_accepted(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path, "--max-body", "2MiB") as machine:
        path = "/v1/tenants/shop/events"
        fine = {"in": 0, "to": receiver.url("/ok"), "payload": "fine"}
        large = {"in": 0, "to": receiver.url("/large"), "payload": "x" * (300 << 10)}
        deep = {"in": 0, "to": receiver.url("/deep"), "payload": json.loads("[" * 100 + "]" * 100)}
        assert machine.call("POST", path, large).status == 413
        assert machine.call("POST", path, large | {"payload": "x" * (3 << 20)}).status == 413
        assert machine.call("POST", path, deep).status == 422
        batch = machine.call("POST", f"{path}/batch", [fine, large, deep, {"nonsense": 1}, fine])
        assert batch.status == 207
        assert [error["index"] for error in batch.json["errors"]] == [1, 2, 3]
        for event_id in (batch.json["ids"][0], batch.json["ids"][4]):
            machine.until_status(event_id, "delivered")
        assert {each.path for each in receiver.received} == {"/ok"}


def test_an_event_that_crashes_its_receiver_dies_and_its_neighbours_are_delivered(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path) as machine:
        few = {"max_attempts": 4, "backoff": "10ms", "max_backoff": "20ms"}
        poison = machine.schedule(receiver.url("/close"), b"\xff".hex(), retry=few)
        neighbours = machine.schedule_many([{"in": 0, "to": receiver.url("/ok"), "retry": few} for _ in range(20)])
        for event_id in neighbours:
            assert machine.until_status(event_id, "delivered")["attempt_count"] == 1
        dead = machine.until_status(poison, "dead")
        assert [attempt["number"] for attempt in dead["attempts"]] == [1, 2, 3, 4]
        assert len(receiver.of(poison)) == 4
