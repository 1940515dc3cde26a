"""Complaints of users of other schedulers, each as a small test: Everbell must not have that fault.

The numbers are those of a list of such complaints; a complaint from the issue tracker of another system names it.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.load import instant
from tests.acceptance.machine import Answer, Machine, now_ms, until
from tests.acceptance.receiver import Receiver

EVENTS = "/v1/tenants/shop/events"
MIB = 1 << 20
SOON = {"max_attempts": 50, "backoff": "20ms", "max_backoff": "50ms"}
TWICE = {"max_attempts": 2, "backoff": "10ms", "max_backoff": "10ms"}
CONFIG = """
[defaults]
lease = "300ms"

[tenants.near]
limits = { horizon = "1h" }

[tenants.parking]
on_dead = "park"
"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One server for all tests: the tests must not disturb each other, either."""
    with Machine(tmp_path_factory.mktemp("machine"), config=CONFIG) as running:
        yield running


def lease(machine: Machine, queue: str, limit: int = 100, wait: str = "20s") -> list[dict[str, object]]:
    answer = machine.call("POST", f"/v1/tenants/shop/queues/{queue}/lease", {"limit": limit, "wait": wait})
    assert answer.status == 200, answer
    return list(answer.json["events"])


def acknowledge(machine: Machine, queue: str, leases: list[dict[str, object]]) -> None:
    tokens = [each["lease"] for each in leases]
    if not tokens:
        return
    answer = machine.call("POST", f"/v1/tenants/shop/queues/{queue}/ack", {"leases": tokens})
    assert answer.status == 200, answer


def test_pending_events_are_on_disk_and_not_in_memory(receiver: Receiver, machine: Machine) -> None:
    """1 and 11: delayed tasks held in the memory of workers; a delay index that outgrows memory."""
    part: list[dict[str, object]] = [{"in": "1d", "to": receiver.url("/ok"), "payload": "x" * 1_000}] * 5_000
    machine.schedule_many(part, "many")
    before = machine.rss_bytes()
    for _ in range(8):
        machine.schedule_many(part, "many")
    assert machine.metric("in_memory_events") < 100
    assert machine.rss_bytes() - before < 150 * MIB  # Forty megabytes of payload, which RocksDB buffers for a while.


def test_a_delay_longer_than_the_lease_is_delivered_once(machine: Machine) -> None:
    """2: redelivery when the delay is longer than a visibility timeout."""
    event_id = machine.schedule("queue:delayed", **{"in": "1200ms"})  # Four leases.
    held = lease(machine, "delayed")
    assert [(each["id"], each["attempt"]) for each in held] == [(event_id, 1)]
    acknowledge(machine, "delayed", held)
    assert machine.event(event_id)["attempt_count"] == 1
    assert lease(machine, "delayed", wait="0s") == []


def test_a_cancel_near_delivery_is_exact(receiver: Receiver, machine: Machine) -> None:
    """4: no cancel, or one that may fail near the delivery. Success means no attempt, a refusal means a delivery."""
    due_at = now_ms() + 900
    ids = machine.schedule_many(
        [{"at": instant(due_at + number), "to": receiver.url("/ok"), "key": f"c{number % 40}"} for number in range(300)]
    )
    until(lambda: now_ms() > due_at, "due")
    cancelled: dict[str, int] = {}
    for event_id in reversed(ids):
        if machine.call("DELETE", f"{EVENTS}/{event_id}").status == 200:
            cancelled[event_id] = now_ms()
    for event_id in ids:
        if event_id in cancelled:
            assert all(each.began_at <= cancelled[event_id] for each in receiver.of(event_id))
            assert machine.event(event_id)["status"] == "cancelled"
        else:
            machine.until_status(event_id, "delivered")
            assert len(receiver.of(event_id)) == 1
    assert 0 < len(cancelled) < 300, "no cancel came near a delivery"


def test_missed_runs_are_not_lost_and_the_series_continues(receiver: Receiver, tmp_path: Path) -> None:
    """5 and 7: missed runs are lost silently; a recurring schedule stops."""
    with Machine(tmp_path) as machine:
        repeat = {"every": "150ms", "count": 12}
        event_id = machine.schedule(receiver.url("/fail/1/500"), repeat=repeat, retry=SOON, id="series")
        until(lambda: receiver.of("series:3"), "the third")
        machine.kill()
        until_past(machine, 600)
        machine.start()
        until(lambda: receiver.of("series:8"), "the eighth")
        machine.kill()
        machine.start()
        machine.until_status(event_id, "delivered")
    taken = [each.occurrence for each in receiver.received if each.id.startswith("series:") and each.accepted]
    assert list(dict.fromkeys(taken)) == list(range(1, 13))


def until_past(machine: Machine, duration_ms: int) -> None:
    """Let time pass while the server is stopped."""
    end_at = now_ms() + duration_ms
    until(lambda: now_ms() > end_at, "later")
    assert machine.ended


def test_a_dead_series_is_visible_and_can_be_redriven(receiver: Receiver, machine: Machine) -> None:
    """7: a recurring schedule stops silently."""
    machine.schedule(
        receiver.url("/sick/dying"), id="dying", repeat={"every": "100ms", "count": 3}, retry=TWICE, key="dying"
    )
    dead = machine.until_status("dying", "dead")
    assert dead["reason"] == "gave up after 2 attempts; the last: HTTP 500"
    assert "dying" in [each["id"] for each in machine.call("GET", "/v1/tenants/shop/dead").json["events"]]
    receiver.open_gate("dying")
    assert machine.call("POST", "/v1/tenants/shop/dead/redrive", {"ids": ["dying"]}).status == 200
    machine.until_status("dying", "delivered")
    taken = [each.occurrence for each in receiver.received if each.id.startswith("dying:") and each.accepted]
    assert taken == [1, 2, 3]


def test_a_delayed_event_needs_no_other_request_to_be_delivered(receiver: Receiver, machine: Machine) -> None:
    """8: delayed jobs that are stuck until another request comes. The test sends no request meanwhile."""
    event_id = machine.schedule(receiver.url("/ok"), **{"in": "4s"})  # Beyond the loaded window.
    assert until(lambda: receiver.of(event_id), "delivered")


def test_an_event_that_is_due_now_does_not_wait_for_a_poll_interval(receiver: Receiver, machine: Machine) -> None:
    """8: on an idle server, an event that is due at once starts before one that was stored earlier and is due later."""
    later_at = now_ms() + 4_500
    later = machine.schedule(receiver.url("/ok"), at=instant(later_at))
    until(lambda: now_ms() > later_at - 1_000, "the server was idle for a while")
    due_now = [machine.schedule(receiver.url("/ok"), key=f"idle-{number}") for number in range(10)]
    in_time = now_ms() < later_at - 300  # If the machine was too busy to send in time, nothing is proved.
    for event_id in (later, *due_now):
        machine.until_status(event_id, "delivered")
    (known,) = receiver.of(later)
    assert not in_time or all(receiver.of(event_id)[0].order < known.order for event_id in due_now)


def test_many_workers_execute_an_event_once(machine: Machine) -> None:
    """9: as many executions as there are workers."""
    ids = machine.schedule_many([{"in": 0, "to": "queue:shared"} for _ in range(200)])
    held: list[dict[str, object]] = []

    def work() -> None:
        end_at = now_ms() + 30_000
        while len(held) < 200 and now_ms() < end_at:
            mine = lease(machine, "shared", limit=7, wait="100ms")
            acknowledge(machine, "shared", mine)
            held.extend(mine)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(str(each["id"]) for each in held) == sorted(ids)
    assert {each["attempt"] for each in held} == {1}


def test_a_restart_keeps_all_events(receiver: Receiver, tmp_path: Path) -> None:
    """12, and Onyx 416: delayed messages lost with a node; a cluster that cannot start again after it was shut down."""
    with Machine(tmp_path) as machine:
        ids = machine.schedule_many(
            [{"in": "2500ms", "to": receiver.url("/ok"), "payload": number, "key": "k"} for number in range(50)]
        )
        ids.append(machine.schedule(receiver.url("/ok"), id="mine", **{"in": "1d"}))
        machine.kill()
        machine.start()
        assert machine.stop() == 0
        machine.start()
        assert machine.stop() == 0
        machine.start()
        assert machine.event("mine")["status"] == "scheduled"
        for event_id in ids[:-1]:
            machine.until_status(event_id, "delivered")
        assert [json.loads(each.body) for each in receiver.received if each.id in set(ids)] == list(range(50))


@pytest.mark.parametrize(
    ("tenant", "when"),
    [
        ("shop", {"in": "9999999999999s"}),
        ("shop", {"in": 1e300}),
        ("shop", {"in": 4_294_967_296_000_000}),
        ("shop", {"at": "99999-01-01T00:00:00Z"}),
        ("near", {"in": "2h"}),
        ("near", {"at": "2999-01-01T00:00:00Z"}),
    ],
)
def test_a_due_time_beyond_the_horizon_is_refused(
    receiver: Receiver, machine: Machine, tenant: str, when: dict[str, object]
) -> None:
    """13: a delay that overflows fires at once instead of being refused."""
    answer = machine.call("POST", f"/v1/tenants/{tenant}/events", {"to": receiver.url("/overflow"), **when})
    assert answer.status == 422
    assert answer.json["field"] == next(iter(when))
    assert receiver.on("/overflow") == []


def test_an_event_a_century_ahead_is_accepted_and_not_delivered_now(receiver: Receiver, machine: Machine) -> None:
    """13, the other way round: a delay of 2^32 milliseconds or 2^31 seconds is just a delay."""
    for number, delay in enumerate(("4294967297ms", "2147483649s", "36525d")):
        machine.schedule(receiver.url("/far"), id=f"far-{number}", **{"in": delay})
        assert machine.event(f"far-{number}")["status"] == "scheduled"
    assert receiver.on("/far") == []


def test_times_are_kept_to_the_millisecond(receiver: Receiver, machine: Machine) -> None:
    """14: precision of a minute. Accepted in reverse, delivered in the order of times that differ by milliseconds."""
    due_at = now_ms() + 700
    for number in reversed(range(40)):
        machine.schedule(receiver.url("/slow/1"), id=f"fine-{number}", at=instant(due_at + 7 * number), key="fine")
    for number in range(40):
        machine.until_status(f"fine-{number}", "delivered")
    mine = [each for each in receiver.received if each.id.startswith("fine-")]
    assert [each.id for each in mine] == [f"fine-{number}" for number in range(40)]
    assert all(each.began_at >= due_at + 7 * number for number, each in enumerate(mine))


@pytest.mark.parametrize("when", [{"in": 0}, {"in": "1ms"}, {"in": "250ms"}, {"at": "2020-02-29T12:00:00Z"}])
def test_events_of_the_current_minute_are_delivered(receiver: Receiver, machine: Machine, when: dict[str, Any]) -> None:
    """BigBen 48: events less than a minute ahead never ring."""
    machine.until_status(machine.schedule(receiver.url("/ok"), **when), "delivered")


def test_all_events_of_one_instant_are_delivered(receiver: Receiver, machine: Machine) -> None:
    """BigBen 25: a hundred thousand published, half of them stored."""
    at = instant(now_ms() + 800)
    batch: list[dict[str, object]] = [{"at": at, "to": receiver.url("/ok")}] * 1_000
    ids: list[str] = []
    senders = [threading.Thread(target=lambda: ids.extend(machine.schedule_many(batch, "instant"))) for _ in range(2)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    assert len(set(ids)) == 2_000
    wanted = set(ids)
    until(lambda: wanted <= {each.id for each in list(receiver.received)}, "all delivered")
    until(lambda: machine.count("instant", "delivered") == 2_000, "all finished")
    assert len([each for each in receiver.received if each.id in wanted]) == 2_000


def test_an_accepted_event_can_be_read(machine: Machine) -> None:
    """PagerDuty 40: enqueueing succeeds, and the task never appears."""
    for number in range(50):
        event_id = machine.schedule("queue:never", number, **{"in": "1h"})
        assert machine.event(event_id)["payload"] == number


def test_a_stuck_key_delays_no_other_event(receiver: Receiver, machine: Machine) -> None:
    """PagerDuty 41: stuck tasks. A key waits for its failing head; other keys and events do not."""
    machine.schedule(receiver.url("/status/500"), id="stuck", key="stuck", retry=SOON | {"max_attempts": 1_000})
    machine.schedule(receiver.url("/ok"), id="behind", key="stuck")
    until(lambda: len(receiver.of("stuck")) > 3, "several tries")
    for number in range(20):
        machine.until_status(machine.schedule(receiver.url("/ok"), key=f"free-{number}"), "delivered")
        machine.until_status(machine.schedule(receiver.url("/ok")), "delivered")
    assert receiver.of("behind") == []
    assert machine.call("DELETE", f"{EVENTS}/stuck").status == 200
    machine.until_status("behind", "delivered")


def test_dropping_a_dead_head_unblocks_its_key(receiver: Receiver, machine: Machine) -> None:
    """PagerDuty 41: a dead head blocks its key until an operator decides, and no longer."""
    machine.schedule(receiver.url("/status/400"), id="dead-head", key="dead-head")
    for number in range(5):
        machine.schedule(receiver.url("/ok"), id=f"follower-{number}", key="dead-head")
    machine.until_status("dead-head", "dead")
    assert machine.event("follower-0")["status"] in ("scheduled", "waiting")
    assert machine.call("DELETE", f"{EVENTS}/dead-head").status == 200
    for number in range(5):
        machine.until_status(f"follower-{number}", "delivered")
    followers = [each.id for each in receiver.received if each.id.startswith("follower-")]
    assert followers == [f"follower-{number}" for number in range(5)]


def test_a_parked_head_does_not_block_its_key(receiver: Receiver, machine: Machine) -> None:
    """PagerDuty 41, with the other policy: after its attempts the head is parked, and the next event is delivered."""
    machine.schedule(receiver.url("/status/500"), tenant="parking", id="head", key="k", retry=TWICE)
    machine.schedule(receiver.url("/ok"), tenant="parking", id="next", key="k")
    machine.until_status("next", "delivered", "parking")
    assert machine.event("head", "parking")["status"] == "dead"
    assert [each.id for each in receiver.received if each.id in ("head", "next")] == ["head", "head", "next"]


def test_a_deleted_event_does_not_return_after_a_crash(receiver: Receiver, tmp_path: Path) -> None:
    """Chronos 175: deleted timers that ring on another node, here after a crash."""
    with Machine(tmp_path) as machine:
        ids = machine.schedule_many([{"in": "1500ms", "to": receiver.url("/deleted")} for _ in range(50)])
        for event_id in ids:
            assert machine.call("DELETE", f"{EVENTS}/{event_id}").status == 200
        after = machine.schedule(receiver.url("/ok"), **{"in": "1600ms"})
        machine.kill()
        machine.start()
        machine.until_status(after, "delivered")
        assert receiver.on("/deleted") == []
        assert machine.event(ids[0])["status"] == "cancelled"


def test_an_event_can_be_found_changed_moved_and_removed(receiver: Receiver, machine: Machine) -> None:
    """4, and PagerDuty 32: the whole life of an event that is changed, until it is deleted."""

    def call(method: str, body: object = None, **headers: str) -> Answer:
        return machine.call(method, f"{EVENTS}/life", body, {name.replace("_", "-"): v for name, v in headers.items()})

    assert call("GET").status == 404
    machine.schedule(receiver.url("/life"), {"n": 1}, id="life", tags=["t"], **{"in": "1h"})
    found = machine.call("GET", f"{EVENTS}?tag=t").json["events"]
    assert [(each["id"], each["payload"]) for each in found] == [("life", {"n": 1})]
    changed = call("PATCH", {"payload": {"n": 2}}, if_match='"1"')
    assert (changed.status, changed.json["payload"], changed.headers["etag"]) == (200, {"n": 2}, '"2"')
    assert call("PATCH", {"payload": {"n": 3}}, if_match='"1"').status == 412
    moved = call("PATCH", {"at": "2030-01-01T00:00:00Z"})
    assert (moved.json["at"], moved.json["payload"]) == ("2030-01-01T00:00:00.000Z", {"n": 2})
    assert call("DELETE").json["status"] == "cancelled"
    assert call("PATCH", {"in": 0}).status == 409
    assert machine.call("GET", f"{EVENTS}?tag=t&status=scheduled").json["events"] == []
    assert machine.call("DELETE", f"{EVENTS}/nobody").status == 404
    assert receiver.on("/life") == []


def test_of_two_payloads_for_one_id_the_second_put_wins(receiver: Receiver, machine: Machine) -> None:
    """Two payloads for one id: the later one is delivered, once."""
    for status, payload in ((201, "first"), (200, "second")):
        event = {"to": receiver.url("/ok"), "payload": payload, "in": "700ms"}
        assert machine.call("PUT", f"{EVENTS}/twice", event).status == status
    machine.until_status("twice", "delivered")
    assert [json.loads(each.body) for each in receiver.of("twice")] == ["second"]


def test_an_event_of_a_repeated_request_runs_once(receiver: Receiver, machine: Machine) -> None:
    """15: doubled work. Repeating the same id, before and after the event ran, gives the same event."""
    for _ in range(5):
        machine.schedule(receiver.url("/ok"), 1, id="once", at="2021-01-01T00:00:00Z")
    machine.until_status("once", "delivered")
    for _ in range(5):
        machine.schedule(receiver.url("/ok"), 1, id="once", at="2021-01-01T00:00:00Z")
    machine.until_status(machine.schedule(receiver.url("/ok")), "delivered")
    assert len(receiver.of("once")) == 1


def test_an_older_event_is_accepted_after_a_newer_one_ran(receiver: Receiver, machine: Machine) -> None:
    """PagerDuty 40: a task that is older than the last task of its key is not lost."""
    machine.schedule(receiver.url("/ok"), id="newer", key="age", at=instant(now_ms()))
    machine.until_status("newer", "delivered")
    machine.schedule(receiver.url("/ok"), id="older", key="age", at="2020-01-01T00:00:00Z")
    machine.until_status("older", "delivered")


@pytest.mark.parametrize("options", [(), ("--gateways", "1")])
def test_a_clean_stop_lets_attempts_finish(receiver: Receiver, tmp_path: Path, options: tuple[str, ...]) -> None:
    """12, rolling restarts: attempts in flight end and are recorded, no new attempt begins, and the exit code is 0."""
    gate = f"polite-{len(options)}"
    with Machine(tmp_path, *options) as machine:
        ids = machine.schedule_many([{"in": 0, "to": receiver.url(f"/gate/{gate}")} for _ in range(10)])
        until(lambda: len(receiver.on(f"/gate/{gate}")) == 10, "all are in flight")
        later = machine.schedule(receiver.url(f"/later/{gate}"), **{"in": "1h"})
        machine.signal(signal.SIGTERM)
        until(lambda: "stopping" in machine.log, "stopping")
        receiver.open_gate(gate)
        assert machine.code == 0
        machine.start()
        for event_id in ids:
            event = machine.event(event_id)
            assert (event["status"], event["attempt_count"]) == ("delivered", 1)
        assert machine.event(later)["status"] == "scheduled"
        assert len(receiver.on(f"/gate/{gate}")) == 10
