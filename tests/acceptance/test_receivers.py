"""Receivers of all kinds: the requests that they get, the meaning of their answers, and that a bad receiver delays no
other.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator

import pytest
from standardwebhooks import Webhook

from tests.acceptance.load import instant
from tests.acceptance.machine import Machine, now_ms, until
from tests.acceptance.receiver import HUGE_BYTES, Receiver

SECRET = "whsec_" + b64encode(b"a secret of twenty-four b").decode()
OLD_SECRET = "whsec_" + b64encode(b"another one, which is gone").decode()
CONFIG = f"""
[defaults]
timeout = "1s"

[tenants.signed]
secrets = ["{SECRET}", "{OLD_SECRET}"]

[tenants.bulk]
batch = 100
secrets = ["{SECRET}"]

[tenants.narrow]
in_flight = 4
timeout = "60s"
"""
THREE = {"max_attempts": 3, "backoff": "10ms", "max_backoff": "20ms"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine"), config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 410, 411, 413, 415, 418, 422, 426, 451, 499])
def test_a_permanent_refusal_is_not_retried(receiver: Receiver, machine: Machine, status: int) -> None:
    event_id = machine.schedule(receiver.url(f"/status/{status}"), retry=THREE)
    event = machine.until_status(event_id, "dead")
    assert [attempt["code"] for attempt in event["attempts"]] == [status]
    assert event["reason"] == f"HTTP {status}: as you wish"
    assert [each.attempt for each in receiver.of(event_id)] == [1]


@pytest.mark.parametrize(
    "status", [408, 409, 425, 429, 500, 501, 502, 503, 504, 507, 599, 300, 301, 302, 304, 307, 308]
)
def test_a_temporary_refusal_is_retried_exactly_as_often_as_allowed(
    receiver: Receiver, machine: Machine, status: int
) -> None:
    event_id = machine.schedule(receiver.url(f"/status/{status}"), retry=THREE)
    event = machine.until_status(event_id, "dead")
    assert [attempt["code"] for attempt in event["attempts"]] == [status] * 3
    assert [each.attempt for each in receiver.of(event_id)] == [1, 2, 3]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_success(receiver: Receiver, machine: Machine, status: int) -> None:
    event = machine.until_status(machine.schedule(receiver.url(f"/status/{status}")), "delivered")
    assert [attempt["code"] for attempt in event["attempts"]] == [status]


def test_an_event_is_delivered_after_failed_attempts(receiver: Receiver, machine: Machine) -> None:
    event_id = machine.schedule(receiver.url("/fail/2/500"), retry=THREE)
    event = machine.until_status(event_id, "delivered")
    assert [attempt["result"] for attempt in event["attempts"]] == ["failed", "failed", "delivered"]
    assert [each.attempt for each in receiver.of(event_id)] == [1, 2, 3]


def test_retry_after_is_honoured(receiver: Receiver, machine: Machine) -> None:
    event_id = machine.schedule(receiver.url("/status/429?after=2"), retry=THREE | {"max_attempts": 2})
    machine.until_status(event_id, "dead")
    first, second = receiver.of(event_id)
    assert second.began_at - first.ended_at >= 2_000


def test_redirects_are_not_followed(receiver: Receiver, machine: Machine) -> None:
    before = len(receiver.on("/ok"))
    event_id = machine.schedule(receiver.url("/redirect"), retry=THREE)
    event = machine.until_status(event_id, "dead")
    assert f"redirects are not followed; schedule to '{receiver.url('/ok')}'" in event["reason"]
    assert len(receiver.of(event_id)) == 3
    assert len(receiver.on("/ok")) == before


@pytest.mark.parametrize(
    ("path", "result", "reason"),
    [
        ("/close", "failed", "closed"),
        ("/garbage", "failed", ""),
        ("/drip", "timeout", ""),
        ("/slow/60000", "timeout", ""),
        ("/huge", "delivered", ""),
    ],
)
def test_a_bad_answer_ends_the_attempt_with_its_reason(
    receiver: Receiver, machine: Machine, path: str, result: str, reason: str
) -> None:
    event_id = machine.schedule(receiver.url(path), retry=THREE | {"max_attempts": 2})
    event = machine.until_status(event_id, "delivered" if result == "delivered" else "dead")
    attempts = [attempt["result"] for attempt in event["attempts"]]
    assert attempts == ([result] if result == "delivered" else [result] * 2)
    assert reason in event.get("reason", "")
    assert len(receiver.of(event_id)) == len(attempts)


def test_a_response_without_end_is_cut_off(receiver: Receiver, machine: Machine) -> None:
    before = machine.rss_bytes()
    ids = machine.schedule_many([{"in": 0, "to": receiver.url("/huge"), "retry": THREE}] * 32)
    for event_id in ids:
        machine.until_status(event_id, "delivered")
    assert machine.rss_bytes() - before < 8 * HUGE_BYTES, "whole answers were kept in memory"


def test_a_target_without_a_listener_is_retried(machine: Machine, port: int) -> None:
    event_id = machine.schedule(f"http://127.0.0.1:{port}/", retry=THREE)
    event = machine.until_status(event_id, "dead")
    assert [attempt["result"] for attempt in event["attempts"]] == ["failed"] * 3


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest", "http://10.0.0.1/", "http://[fd00::1]/"])
def test_a_forbidden_address_is_refused_when_an_event_is_scheduled_or_changed(machine: Machine, target: str) -> None:
    events = "/v1/tenants/shop/events"
    spec = {"to": target, "in": "1h"}
    refused = machine.call("POST", events, spec)
    assert (refused.status, refused.json["field"]) == (422, "to")
    assert refused.json["type"].endswith("/refused-address")
    assert "--allow-targets" in refused.json["detail"]
    batch = machine.call("POST", f"{events}/batch", [{"to": "queue:a", "in": "1h"}, spec])
    assert batch.status == 207, batch
    assert "--allow-targets" in batch.body.decode()
    kept = machine.schedule("queue:a", **{"in": "1h"})
    changed = machine.call("PATCH", f"{events}/{kept}", {"to": target})
    assert (changed.status, changed.json["field"]) == (422, "to")


def test_headers_are_complete_and_stable_over_attempts(receiver: Receiver, machine: Machine) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    due_at = now_ms()
    event_id = machine.schedule(
        receiver.url("/fail/2/503"),
        {"any": ["json", 1.50, "ü"]},
        at=instant(due_at),
        id="order 17/ü",
        key="k ü",
        headers={"X-Team": "orders"},
        traceparent=trace,
        retry=THREE,
    )
    machine.until_status("order%2017%2F%C3%BC", "delivered")
    deliveries = receiver.of("order%2017/%C3%BC")
    assert [each.attempt for each in deliveries] == [1, 2, 3]
    stable = {
        "ce-specversion": "1.0",
        "ce-type": "dev.everbell.event",
        "ce-source": "/v1/tenants/shop",
        "ce-id": "order%2017/%C3%BC",
        "ce-partitionkey": "k%20%C3%BC",
        "content-type": "application/json",
        "everbell-occurrence": "1",
        "everbell-epoch": str(machine.metric("epoch")),
        "traceparent": trace,
        "x-team": "orders",
    }
    assert event_id == "order 17/ü"
    for delivery in deliveries:
        assert stable.items() <= delivery.headers.items()
        assert delivery.headers["everbell-due"] == delivery.headers["ce-time"]
        assert delivery.due == instant(due_at).replace("+00:00", "Z")
        assert delivery.body == deliveries[0].body == json.dumps({"any": ["json", 1.50, "ü"]}).encode()
        assert not any(name.startswith("webhook-") for name in delivery.headers)


def test_bytes_are_delivered_with_their_own_content_type(receiver: Receiver, machine: Machine) -> None:
    answer = machine.call(
        "POST",
        "/v1/tenants/shop/events",
        {
            "in": 0,
            "to": receiver.url("/ok"),
            "id": "picture",
            "content_type": "image/png",
            "payload_base64": b64encode(b"\x89PNG\x00\xff").decode(),
        },
    )
    assert answer.status == 201
    machine.until_status("picture", "delivered")
    (delivery,) = receiver.of("picture")
    assert (delivery.body, delivery.headers["content-type"]) == (b"\x89PNG\x00\xff", "image/png")


def test_each_occurrence_has_its_own_id(receiver: Receiver, machine: Machine) -> None:
    event_id = machine.schedule(receiver.url("/fail/1/503"), retry=THREE, repeat={"every": "100ms", "count": 3})
    machine.until_status(event_id, "delivered")
    names = [f"{event_id}:{number}" for number in (1, 2, 3)]
    mine = [each for each in receiver.received if each.id in names]
    assert [(each.id, each.occurrence, each.attempt) for each in mine] == [
        (names[number - 1], number, attempt) for number in (1, 2, 3) for attempt in (1, 2)
    ]


def test_signatures_follow_the_standard(receiver: Receiver, machine: Machine) -> None:
    event_id = machine.schedule(receiver.url("/fail/1/503"), {"pay": "ü"}, tenant="signed", retry=THREE)
    machine.until_status(event_id, "delivered", "signed")
    first, second = receiver.of(event_id)
    for delivery in (first, second):
        assert delivery.headers["webhook-id"] == event_id
        for secret in (SECRET, OLD_SECRET):
            assert Webhook(secret).verify(delivery.body, delivery.headers) == {"pay": "ü"}
    assert re.fullmatch(r"v1,\S+ v1,\S+", first.headers["webhook-signature"])


def test_many_events_are_delivered_in_one_post(receiver: Receiver, machine: Machine) -> None:
    later = instant(now_ms() + 700)
    names = [f"bulk-{number}" for number in range(250)]
    to = receiver.url("/batch/bulk-3,bulk-77")
    events: list[dict[str, object]] = [
        {"at": later, "to": to, "id": name, "payload": {"name": name}, "retry": THREE} for name in names
    ]
    machine.schedule_many(events, "bulk")
    for name in names:
        machine.until_status(name, "delivered", "bulk")
    received = receiver.on("/batch/bulk-3,bulk-77")
    posts: dict[int, int] = {}
    for each in received:
        posts[each.request] = posts.get(each.request, 0) + 1
        assert each.data == {"name": each.id}
        Webhook(SECRET).verify(each.body, each.headers)
    assert max(posts.values()) == 100
    assert len(posts) <= 20, "too few events shared a POST"
    attempts = {name: [each.attempt for each in received if each.id == name] for name in names}
    assert {name: numbers for name, numbers in attempts.items() if numbers != [1]} == {
        "bulk-3": [1, 2],
        "bulk-77": [1, 2],
    }


def test_a_batch_that_is_refused_as_a_whole_is_retried_as_a_whole(receiver: Receiver, machine: Machine) -> None:
    events: list[dict[str, object]] = [{"in": "300ms", "to": receiver.url("/fail/1/500"), "retry": THREE}] * 30
    ids = machine.schedule_many(events, "bulk")
    for event_id in ids:
        assert machine.until_status(event_id, "delivered", "bulk")["attempt_count"] == 2


def test_a_slow_target_delays_no_other_target_of_its_tenant(receiver: Receiver, machine: Machine) -> None:
    """Its cap is used up and a hundred more events are due; later events of other targets arrive meanwhile."""
    slow = receiver.url("/gate/narrow", "127.0.0.2")
    stuck = machine.schedule_many([{"in": 0, "to": slow} for _ in range(100)], "narrow")
    until(lambda: len(receiver.on("/gate/narrow")) == 4, "as many in flight as the cap allows")
    others = machine.schedule_many([{"in": 0, "to": receiver.url("/ok", "127.0.0.3")} for _ in range(50)], "narrow")
    for event_id in others:
        machine.until_status(event_id, "delivered", "narrow")
    assert len(receiver.on("/gate/narrow")) == 4, "the cap was exceeded"
    receiver.open_gate("narrow")
    for event_id in stuck:
        machine.until_status(event_id, "delivered", "narrow")


def test_a_slow_target_delays_no_other_tenant(receiver: Receiver, machine: Machine) -> None:
    same_host = receiver.url("/gate/tenant", "127.0.0.4")
    stuck = machine.schedule_many([{"in": 0, "to": same_host} for _ in range(100)], "narrow")
    until(lambda: len(receiver.on("/gate/tenant")) == 4, "as many in flight as the cap allows")
    mine = machine.schedule(receiver.url("/ok", "127.0.0.4"), tenant="shop")
    machine.until_status(mine, "delivered")
    assert all(each.ended_at == 0 for each in receiver.on("/gate/tenant"))
    receiver.open_gate("tenant")
    for event_id in stuck:
        machine.until_status(event_id, "delivered", "narrow")
