"""The BigBen facade on real servers and a real Kafka, with the cases of the original's own tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from everbell.core.bigben import event_time, parse_event_time
from tests.acceptance.fleet import Fleet
from tests.acceptance.kafka_stage import PROPERTIES
from tests.acceptance.machine import Answer, Machine, now_ms, until
from tests.acceptance.receiver import Received, Receiver
from tests.services import shared
from tests.services.topics import Topics

ON = ("--facade", "bigben")
TENANT = "shop/orders & co"
HOUR_MS = 3_600_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(1) as receiver:
        yield receiver


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path, *ON) as machine:
        yield machine
        assert "Traceback" not in machine.log, machine.log


def register(machine: Machine, url: str, tenant: str = TENANT, **headers: str) -> dict[str, Any]:
    props = {"url": url, "headers": headers}
    answer = machine.call("POST", "/events/tenant/register", {"tenant": tenant, "type": "HTTP", "props": props})
    assert answer.status == 200, answer
    tenants: dict[str, Any] = answer.json
    return tenants


def wish(name: str, at: int, payload: str | None = "P", tenant: str | None = TENANT, **more: Any) -> dict[str, Any]:
    return {"id": name, "eventTime": event_time(at), "tenant": tenant, "payload": payload, **more}


def schedule(machine: Machine, *wishes: dict[str, Any], status: int = 200) -> list[dict[str, Any]]:
    answer = machine.call("POST", "/events/schedule", list(wishes))
    assert answer.status == status, answer
    answers: list[dict[str, Any]] = answer.json
    assert [one["id"] for one in answers] == [one.get("id") for one in wishes]
    return answers


def words(answers: list[dict[str, Any]]) -> list[str | None]:
    return [answer["eventStatus"] for answer in answers]


def find(machine: Machine, name: str, tenant: str = TENANT, verb: str = "find") -> Answer:
    method = "GET" if verb == "find" else "POST"
    return machine.call(method, f"/events/{verb}?" + urlencode({"id": name, "tenant": tenant}))


def full(delivery: Received) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(delivery.body)
    return event


def test_the_life_of_an_event_is_that_of_the_original(machine: Machine, receiver: Receiver) -> None:
    """Schedule, find, change the payload, change the time, remove, and it is gone."""
    assert machine.call("GET", "/ping").json == {"status": "OK"}
    register(machine, receiver.url("/ok"))
    at = now_ms() + HOUR_MS
    assert find(machine, "abc").status == 404
    assert find(machine, "abc").json == {"status": "not found"}
    [accepted] = schedule(machine, wish("abc", at))
    assert (accepted["eventStatus"], accepted["tenant"], accepted["error"]) == ("ACCEPTED", TENANT, None)
    assert accepted["eventId"]
    for changed_at, payload in ((at, "P1"), (at + 60_000, "P2")):
        assert words(schedule(machine, wish("abc", changed_at, payload))) == ["UPDATED"]
        found = find(machine, "abc").json
        assert parse_event_time(found["eventTime"]) == changed_at
        assert (found["payload"], found["eventStatus"], found["id"]) == (payload, "UN_PROCESSED", "abc")
    assert words(schedule(machine, wish("abc", at, mode="REMOVE"))) == ["DELETED"]
    assert find(machine, "abc").status == 404
    assert words(schedule(machine, wish("never", at, mode="REMOVE"))) == [None]
    # The id is free again.
    assert words(schedule(machine, wish("abc", at, "anew"))) == ["ACCEPTED"]
    assert find(machine, "abc").json["payload"] == "anew"
    assert receiver.on("/ok") == []


def test_a_receiver_gets_the_full_event_or_the_payload_with_the_headers_of_the_tenant(
    machine: Machine, receiver: Receiver
) -> None:
    register(machine, receiver.url("/ok/here"), header="Header1")
    before, soon = now_ms(), now_ms() + 1_500
    late = wish("late", before - 1_000, "Payload1")
    assert words(schedule(machine, late)) == ["TRIGGERED"]
    [delivery] = receiver.until_ended(1, "/ok/here")
    event = full(delivery)
    assert delivery.headers["header"] == "Header1"
    assert delivery.headers["accept"] == "*/*"
    assert delivery.headers["content-type"] == "application/json; charset=utf-8"
    assert (event["id"], event["tenant"], event["payload"], event["mode"]) == ("late", TENANT, "Payload1", "UPSERT")
    assert (event["eventTime"], event["eventStatus"], event["eventId"]) == (late["eventTime"], "TRIGGERED", None)
    assert parse_event_time(event["triggeredAt"]) >= before
    # Two payloads for one id: the second wins.
    schedule(machine, wish("soon", soon, "first"))
    assert words(schedule(machine, wish("soon", soon, "second"))) == ["UPDATED"]
    bare = wish("bare", soon, '{"just": "this"}', deliveryOption="PAYLOAD_ONLY")
    assert words(schedule(machine, bare, wish("none", soon, None))) == ["ACCEPTED", "ACCEPTED"]
    assert find(machine, "bare").json["deliveryOption"] == "PAYLOAD_ONLY"
    got = receiver.until_ended(4, "/ok/here")[1:]
    bodies = {one.body for one in got if one.body == b'{"just": "this"}'}
    fulls = {full(one)["id"]: full(one) for one in got if "id" in full(one)}
    assert bodies
    assert (fulls["soon"]["payload"], fulls["none"]["payload"]) == ("second", None)
    assert fulls["soon"]["eventId"] is not None
    assert parse_event_time(fulls["soon"]["eventTime"]) == soon
    assert all(one.began_at >= soon for one in got)
    until(lambda: find(machine, "soon").json["eventStatus"] == "PROCESSED", "processed")
    # The id of an event that has ended can be used again, for another time.
    again = now_ms() + 500
    assert words(schedule(machine, wish("soon", again, "third"))) == ["ACCEPTED"]
    assert full(receiver.until_ended(5, "/ok/here")[-1])["payload"] == "third"


def test_four_tries_for_a_server_error_and_one_for_a_bad_request(machine: Machine, receiver: Receiver) -> None:
    register(machine, receiver.url("/status/500"), "sick")
    register(machine, receiver.url("/status/400"), "strict")
    wishes = [wish("x", now_ms() - 1_000, tenant="sick"), wish("x", now_ms() - 1_000, tenant="strict")]
    assert words(schedule(machine, *wishes)) == ["TRIGGERED", "TRIGGERED"]
    for tenant, status, tries in (("sick", 500, 4), ("strict", 400, 1)):
        until(lambda: find(machine, "x", tenant).json["eventStatus"] == "ERROR", "an error")  # noqa: B023
        assert find(machine, "x", tenant).json["error"]["code"] == status
        assert len(receiver.on(f"/status/{status}")) == tries
    # An event that failed can be scheduled anew.
    register(machine, receiver.url("/ok/well"), "sick")
    assert words(schedule(machine, wish("x", now_ms() + 100, "better", "sick"))) == ["UPDATED"]
    assert full(receiver.until_ended(1, "/ok/well")[0])["payload"] == "better"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"id": "a", "eventTime": "2040-01-01T00:00:00Z"}, "tenant not present"),
    ({"id": "a", "eventTime": "2040-01-01T00:00:00Z", "tenant": "x"}, "tenant not registered / unknown tenant"),
    ({"id": "a", "tenant": TENANT}, "event time not present"),
    ({"id": "a", "tenant": TENANT, "eventTime": "tomorrow"}, "event time can not be parsed"),
    ({"id": "a", "tenant": TENANT, "eventTime": "2040-01-01T00:00:00"}, "event time can not be parsed"),
    ({"tenant": TENANT, "eventTime": "2040-01-01T00:00:00Z"}, "id not present"),
    ({**wish("a", 2_000_000_000_000, None), "deliveryOption": "PAYLOAD_ONLY"}, "payload not present"),
    (wish("a", 2_000_000_000_000, tenant="x" * 200), "at most 61"),
    (wish("a\x00b", 2_000_000_000_000), "control characters"),
    (wish("a" * 600, 2_000_000_000_000), "longer than 512"),
    (wish("a", 2_000_000_000_000, "x" * 300_000), "limit"),
]


def test_bad_requests_are_rejected_with_the_reason(machine: Machine, receiver: Receiver) -> None:
    register(machine, receiver.url("/ok"))
    for bad, reason in BAD:
        [told] = schedule(machine, bad, status=400)
        assert (told["eventStatus"], told["error"]["code"]) == ("REJECTED", 400), told
        assert reason in told["error"]["message"], told
    assert words(schedule(machine, BAD[2][0], wish("good", now_ms() + HOUR_MS), status=206)) == ["REJECTED", "ACCEPTED"]
    bodies: list[object] = [b"{", b"{}", b'[{"mode": "DELETE"}]', b'[{"payload": {}}]', b"\xff", [["x"]]]
    for body in bodies:
        answer = machine.call("POST", "/events/schedule", body)
        assert (answer.status, bool(answer.json["message"])) == (400, True), (body, answer)
    assert machine.call("POST", "/events/schedule", []).json == []
    assert find(machine, " ").status == 400
    assert machine.call("GET", "/events/find").status == 400
    assert find(machine, "good", "x").status == 404
    configs: list[tuple[object, str]] = [
        ({"type": "HTTP", "props": {"url": "http://x"}}, "tenant must not be null"),
        ({"tenant": " ", "type": "HTTP", "props": {"url": "http://x"}}, "empty"),
        ({"tenant": "t", "props": {"url": "http://x"}}, "null processor type"),
        ({"tenant": "t", "type": "HTTP"}, "null or empty properties"),
        ({"tenant": "t", "type": "HTTP", "props": {"url": "ftp://x"}}, "url"),
        ({"tenant": "t", "type": "HTTP", "props": {"url": "http://x", "headers": {"host": "y"}}}, "host"),
        ({"tenant": "t", "type": "MESSAGING", "props": {"topic": "x"}}, "Kafka"),
        ({"tenant": "t", "type": "CUSTOM_CLASS", "props": {"eventProcessorClass": "x.Y"}}, "CUSTOM_CLASS"),
        ({"tenant": "t", "type": "FTP", "props": {"x": 1}}, "type"),
    ]
    for config, reason in configs:
        answer = machine.call("POST", "/events/tenant/register", config)
        assert (answer.status, reason in answer.json["message"]) == (400, True), (config, answer)
    assert list(machine.call("GET", "/events/tenants").json) == [TENANT]


def test_tenants_of_any_name_are_apart(machine: Machine, receiver: Receiver) -> None:
    names = ["A/B/C", "A_2FB_2FC", "Zürich/日本", "_", "/", "a b", "bb.x", "-"]
    tenants: dict[str, Any] = {}
    for number, name in enumerate(names):
        tenants = register(machine, receiver.url(f"/ok/{number}"), name, team=str(number))
    assert tenants.keys() == set(names)
    assert tenants["A/B/C"]["props"] == {"url": receiver.url("/ok/0"), "headers": {"team": "0"}}
    assert machine.call("GET", "/events/tenants").json == tenants
    wishes = [wish("same", now_ms() - 1, name, name) for name in names]
    assert words(schedule(machine, *wishes)) == ["TRIGGERED"] * len(names)
    for number, name in enumerate(names):
        [delivery] = receiver.until_ended(1, f"/ok/{number}")
        assert (full(delivery)["tenant"], full(delivery)["payload"]) == (name, name)
        until(lambda: find(machine, "same", name).json["eventStatus"] == "PROCESSED", "processed")  # noqa: B023
    # Natively they are tenants like all others, with quotas, searches and metrics.
    assert machine.event("same", "bb.A_2FB_2FC")["status"] == "delivered"


def test_events_at_one_instant_are_all_processed(machine: Machine, receiver: Receiver) -> None:
    register(machine, receiver.url("/ok/all"))
    start = now_ms() - now_ms() % 60_000
    for offset in ("PT0S", "PT0.5S"):
        body = {"offset": offset, "period": "PT0S", "numEvents": 1_000, "tenant": TENANT}
        answer = machine.call("POST", "/generation/random", body)
        assert answer.status == 200, answer
        assert sum(answer.json.values()) == 1_000
        assert all(parse_event_time(minute) >= start for minute in answer.json)
    got = receiver.until_ended(2_000, "/ok/all")
    assert len({full(one)["id"] for one in got}) == 2_000
    spread = {"offset": "PT1H", "period": "PT10M", "numEvents": 500, "tenant": TENANT}
    minutes = machine.call("POST", "/generation/random", spread).json
    assert (sum(minutes.values()), len(minutes)) == (500, 10)
    for bad in ({**spread, "tenant": "x"}, {**spread, "offset": "later"}, {**spread, "numEvents": -1}, {}):
        assert machine.call("POST", "/generation/random", bad).status == 400, bad


def test_a_dry_run_fires_an_event_and_leaves_it_as_it_was(machine: Machine, receiver: Receiver) -> None:
    register(machine, receiver.url("/ok/dry"))
    schedule(machine, wish("x", now_ms() + HOUR_MS))
    answer = find(machine, "x", verb="dryrun")
    assert (answer.status, answer.json["eventStatus"], answer.json["error"]) == (200, "TRIGGERED", None)
    assert full(receiver.until_ended(1, "/ok/dry")[0])["id"] == "x"
    assert find(machine, "x").json["eventStatus"] == "UN_PROCESSED"
    assert find(machine, "y", verb="dryrun").status == 404
    assert find(machine, "", verb="dryrun").status == 400
    assert set(machine.call("GET", "/events/cluster").json.values()) == {"Master"}


def test_crons(machine: Machine, receiver: Receiver) -> None:
    register(machine, receiver.url("/ok/cron"))
    path = f"/cron/{quote(TENANT, safe='')}/tick"
    cron = {"id": "tick", "expression": "* * * * * ?", "type": "QUARTZ", "tenant": TENANT}
    assert machine.call("POST", "/cron", cron).json == {"status": "OK"}
    assert machine.call("POST", "/cron", {**cron, "type": "UNIX", "expression": "0 0 1 1 *"}).status == 200
    events = [full(one) for one in receiver.until_ended(2, "/ok/cron")[:2]]
    assert all(
        (one["id"], one["payload"], one["eventStatus"]) == ("tick", "* * * * * ?", "TRIGGERED") for one in events
    )
    assert len({one["eventId"] for one in events}) == len({one["eventTime"] for one in events}) == 2
    shown = machine.call("GET", f"{path}?describe=true").json
    assert [one["cron"]["type"] for one in shown] == ["UNIX", "QUARTZ"]
    assert shown[0]["cron"]["expression"] == "0 0 1 1 *"
    assert "-01-01T00:00Z" in shown[0]["description"]
    assert machine.call("DELETE", f"{path}/QUARTZ").json == {"status": "OK"}
    assert [one["cron"]["type"] for one in machine.call("GET", path).json] == ["UNIX"]
    assert machine.call("DELETE", f"{path}/*").status == 200
    assert machine.call("GET", path).json == []
    for bad in (
        {**cron, "tenant": "x"},
        {**cron, "expression": "* * * * *"},
        {**cron, "expression": "0 0 0 31 2 ?"},
        {**cron, "expression": "0 0 0 * * ? 2040"},
        {**cron, "type": "SOLAR"},
        {**cron, "id": " "},
        {},
    ):
        answer = machine.call("POST", "/cron", bad)
        assert (answer.status, bool(answer.json["message"])) == (400, True), (bad, answer)
    assert machine.call("DELETE", f"{path}/SOLAR").status == 400


def test_kafka_in_and_out_with_a_restart_in_the_middle(tmp_path: Path) -> None:
    server = shared.kafka()
    topics = Topics(server)
    source, sink, refused = topics.new(3), topics.new(3), topics.new()
    properties = tmp_path / "kafka.properties"
    properties.write_text(PROPERTIES)
    options = ["--kafka-brokers", server.address, "--kafka-properties", str(properties)]
    options += ["--kafka-topics", f"{source}:bigben", "--kafka-group", server.fresh_name()]
    options += ["--kafka-dead-letters", refused, "--gateways", "2"]
    machine = Machine(tmp_path, *ON, *options)
    with machine:
        props = {"topic": sink, "bootstrap.servers": server.address}
        config = {"tenant": TENANT, "type": "MESSAGING", "props": props}
        tenants = machine.call("POST", "/events/tenant/register", config).json
        assert tenants == {TENANT: config}
        other = {**config, "props": {**props, "bootstrap.servers": "elsewhere:9092"}}
        assert machine.call("POST", "/events/tenant/register", other).status == 400
        soon = now_ms() + 6_000
        for n in range(60):
            topics.send(source, json.dumps(wish(f"e{n}", soon + n, f"first {n}")).encode(), key=f"e{n}".encode())
        for n in range(0, 60, 2):
            topics.send(source, json.dumps(wish(f"e{n}", soon, f"second {n}")).encode(), key=f"e{n}".encode())
        for n in range(0, 60, 3):
            topics.send(source, json.dumps(wish(f"e{n}", soon, mode="REMOVE")).encode(), key=f"e{n}".encode())
        late = wish("late", now_ms() - 5_000, "bare", deliveryOption="PAYLOAD_ONLY")
        topics.send(source, json.dumps(late).encode(), key=b"late")
        bad = [b"{", b"[]", json.dumps(wish("x", soon, tenant="nobody")).encode(), json.dumps({"id": "x"}).encode()]
        for value in bad:
            topics.send(source, value)
        topics.flush()
        [first] = topics.read(sink, 1)
        assert (first.key, first.value) == (b"late", b"bare")
        until(lambda: machine.metric("kafka_records_total") >= 60 + 30 + 20 + 1 + 4, "all were read")
        machine.kill()
        machine.start()
        wanted = {f"e{n}": f"second {n}" if n % 2 == 0 else f"first {n}" for n in range(60) if n % 3}
        got = topics.read_until(sink, lambda so_far: len({one.key for one in so_far}) > len(wanted))
        events = {one.key: json.loads(one.value) for one in got if one.key != b"late"}
        assert {key.decode(): event["payload"] for key, event in events.items() if key} == wanted
        assert all(event["id"].encode() == key and event["tenant"] == TENANT for key, event in events.items() if key)
        letters = topics.read(refused, len(bad))
        assert Counter(letter.value for letter in letters) == Counter(bad)
        assert machine.stop() == 0


def test_gateways_keys_and_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    key_file = tmp_path / "first-key"
    options = ("--gateways", "2", "--bootstrap-key", str(key_file), "--allow-targets", "127.0.0.0/8")
    machine = Machine(tmp_path, *ON, *options)
    with machine:
        assert machine.call("POST", "/events/schedule", [wish("x", 0)]).status == 401
        assert machine.call("GET", "/ping").status == 200
        machine.token = key_file.read_text().strip()
        register(machine, receiver.url("/ok/kept"))
        at = now_ms() + 2_000
        # Every gateway knows the tenant at once.
        for n in range(50):
            assert words(schedule(machine, wish(f"e{n}", at))) == ["ACCEPTED"]
        # A key that may schedule, and not read, sees no payload of others.
        scopes = {"tenant": "*", "scopes": ["schedule"]}
        operator, machine.token = machine.token, machine.call("POST", "/v1/keys", scopes).json["key"]
        assert find(machine, "e0").status == 403
        tried = find(machine, "e0", verb="dryrun")
        assert (tried.status, tried.json["payload"], tried.json["eventStatus"]) == (200, None, "TRIGGERED")
        assert machine.call("POST", "/events/tenant/register", {}).status == 403
        machine.token = operator
        machine.kill()
        machine.start()
        assert list(machine.call("GET", "/events/tenants").json) == [TENANT]
        got = receiver.until_ended(51, "/ok/kept")
        assert {full(one)["id"] for one in got} == {f"e{n}" for n in range(50)}


def test_all_nodes_of_a_cluster_answer(tmp_path: Path, receiver: Receiver) -> None:
    store = shared.postgres().fresh_schema()
    with Fleet(tmp_path, store, "--lease", "1s", *ON) as fleet:
        fleet.grow("n1", "n2", "n3")
        fleet.until_balanced("n1", "n2", "n3")
        nodes = list(fleet.nodes.values())
        register(nodes[0], receiver.url("/ok/any"))
        at = now_ms() + HOUR_MS
        for n in range(30):
            assert words(schedule(nodes[n % 3], wish(f"e{n}", at, "old"))) == ["ACCEPTED"]
        for n in range(30):
            assert words(schedule(nodes[(n + 1) % 3], wish(f"e{n}", at, f"new {n}"))) == ["UPDATED"]
            assert find(nodes[(n + 2) % 3], f"e{n}").json["payload"] == f"new {n}"
        moved = schedule(nodes[0], *(wish(f"e{n}", now_ms() + 2_000, f"new {n}") for n in range(30)))
        assert words(moved) == ["UPDATED"] * 30
        assert Counter(nodes[1].call("GET", "/events/cluster").json.values()) == {"Master": 1, "Slave": 2}
        fleet.kill("n3")
        wanted = {f"new {n}" for n in range(30)}
        until(lambda: {full(one)["payload"] for one in receiver.on("/ok/any")} == wanted, "all arrive")
