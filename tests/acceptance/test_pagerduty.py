"""Tasks of PagerDuty's scheduler from a real Kafka, and its admin API, with the cases of the original's own tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from everbell.core.time import format_instant
from tests.acceptance.fleet import Fleet
from tests.acceptance.kafka_stage import PROPERTIES
from tests.acceptance.machine import Answer, Machine, now_ms, until
from tests.acceptance.receiver import Receiver
from tests.services import shared
from tests.services.topics import Topics

HOUR_MS = 3_600_000


class TaskStage:
    """A topic with tasks, and a server that reads it and delivers to a receiver."""

    def __init__(self, folder: Path, receiver: Receiver, path: str) -> None:
        server = shared.kafka()
        self.topics = Topics(server)
        self.source, self.refused = self.topics.new(2), self.topics.new()
        self.receiver = receiver
        self.written = 0
        properties = folder / "kafka.properties"
        properties.write_text(PROPERTIES)
        kafka = ["--kafka-brokers", server.address, "--kafka-properties", str(properties)]
        kafka += ["--kafka-topics", f"{self.source}=pd:pagerduty", "--kafka-group", server.fresh_name()]
        kafka += ["--kafka-dead-letters", self.refused, "--facade", "pagerduty=pd"]
        retry = 'retry = {backoff = "100ms", max_backoff = "200ms"}'
        config = f'[tenants.pd]\nto = "{self.receiver.url(path)}"\n{retry}\n'
        self.machine = Machine(folder, *kafka, config=config)

    def write(self, ordering_id: str, at: int, key: str, data: str = "x", **place: Any) -> None:
        task = {
            "version": 1,
            "orderingId": ordering_id,
            "scheduledTime": format_instant(at),
            "uniquenessKey": key,
            "taskData": {"note": data},
        }
        self.send(json.dumps(task).encode(), key=ordering_id.encode(), **place)

    def send(self, value: bytes, **place: Any) -> None:
        self.topics.write(self.source, value, **place)
        self.written += 1

    def until_read(self) -> None:
        until(lambda: self.machine.metric("kafka_records_total") >= self.written, "all records were read")

    def ask(self, path: str, **query: str) -> Answer:
        return self.machine.call("GET", f"{path}?{urlencode(query)}")

    def task(self, at: int, ordering_id: str, key: str) -> Answer:
        return self.ask("/api/v1/task", key=task_key(at, ordering_id, key))

    def drop(self, key: str, body: object) -> Answer:
        return self.machine.call("PUT", f"/api/v1/task?{urlencode({'key': key})}", body)

    def notes(self, path: str) -> list[str]:
        """The data of the tasks that ran, in the order in which they began."""
        ran = sorted(self.receiver.on(path), key=lambda one: one.order)
        return [json.loads(one.body)["taskData"]["note"] for one in ran]


def task_key(at: int, ordering_id: str, key: str) -> str:
    return f"TaskKey({format_instant(at)},{ordering_id},{key})"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[TaskStage]:
    with Receiver(1) as receiver:
        stage = TaskStage(tmp_path, receiver, "/ok/tasks")
        with stage.machine:
            yield stage
            assert "Traceback" not in stage.machine.log, stage.machine.log


def test_the_same_key_overwrites_and_a_completed_key_does_not_run_again(stage: TaskStage) -> None:
    far, soon = now_ms() + HOUR_MS, now_ms() + 2_000
    produced_at = now_ms() - 77_000
    stage.write("queue", far, "a", "old", timestamp=produced_at - 5_000)
    stage.write("queue", far, "a", "new", timestamp=produced_at)
    stage.write("queue", far, "b", "other")
    stage.write("queue", soon, "c", "runs")
    stage.until_read()
    task = stage.task(far, "queue", "a").json["task"]
    assert (task["data"], task["status"], task["numberOfAttempts"]) == ({"note": "new"}, "Incomplete", 0)
    assert task["enqueuedAt"] == format_instant(produced_at)
    assert task["key"] == task_key(far, "queue", "a")
    native = stage.machine.call("GET", "/v1/tenants/pd/events?key=queue").json["events"]
    assert {one["id"].rpartition(",")[2]: one.get("produced_at") for one in native}["a"] == format_instant(produced_at)
    until(lambda: stage.task(soon, "queue", "c").json["task"]["status"] == "Success", "it ran")
    stage.write("queue", soon, "c", "must not run again")
    stage.write("queue", soon, "d", "runs too")
    stage.receiver.until_ended(2, "/ok/tasks")
    assert stage.notes("/ok/tasks") == ["runs", "runs too"]
    done = stage.task(soon, "queue", "c").json["task"]
    assert (done["status"], done["numberOfAttempts"], done["details"]["attempts"][0]["taskResult"]) == (
        "Success",
        1,
        "Success",
    )
    assert done["enqueuedAt"]
    assert stage.machine.metric("kafka_refused_total") == 0


def test_tasks_run_in_any_order_of_scheduling_across_a_restart(stage: TaskStage) -> None:
    soon = now_ms() + 5_000
    # Ten queues; in each the tasks are written in a jumbled order, twice, some of them past the look-ahead at first.
    for n in (3, 0, 4, 1, 2):
        for queue in range(10):
            stage.write(f"q{queue}", soon + 20 * n, f"k{n}", f"{queue}:{n}")
    stage.until_read()
    stage.machine.kill()
    for queue in range(10):
        stage.write(f"q{queue}", soon + 20, "k1", f"{queue}:1")
        stage.write(f"q{queue}", now_ms() - 1_000, "late", f"{queue}:late")
    stage.machine.start()
    stage.receiver.until_ended(60, "/ok/tasks")
    ran = stage.notes("/ok/tasks")
    for queue in range(10):
        mine = [note.partition(":")[2] for note in ran if note.startswith(f"{queue}:")]
        assert [note for note in mine if note != "late"] == ["0", "1", "2", "3", "4"], mine
        assert mine.count("late") == 1


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[TaskStage]:
    with Receiver(1) as receiver:
        stage = TaskStage(tmp_path, receiver, "/sick/stuck")
        with stage.machine:
            yield stage


def test_dropping_a_stuck_task_unblocks_its_queue_and_others_go_on(sick: TaskStage) -> None:
    stage, now = sick, now_ms()
    stage.write("stuck", now, "1", "first")
    stage.write("stuck", now + 1, "2", "second")
    until(lambda: len(stage.receiver.on("/sick/stuck")) >= 3, "it is tried again and again")
    assert set(stage.notes("/sick/stuck")) == {"first"}
    key = task_key(now, "stuck", "1")
    task = stage.task(now, "stuck", "1").json["task"]
    assert (task["status"], task["details"]["attempts"][0]["taskResult"]) == ("Incomplete", "Failure")
    assert stage.drop(key, {"task": {"status": "Success"}}).status == 400
    assert stage.drop("nonsense", {"task": {"status": "Dropped"}}).status == 400
    assert stage.drop(key, b'{"task":').status == 400
    assert stage.drop(task_key(now, "no", "such"), {"task": {"status": "Dropped"}}).status == 404
    assert stage.drop(key, {"task": {"status": "Dropped"}}).status == 204
    assert stage.drop(key, {"task": {"status": "Dropped"}}).status == 204
    assert stage.task(now, "stuck", "1").json["task"]["status"] == "Dropped"
    until(lambda: "second" in stage.notes("/sick/stuck"), "the next one has its turn")
    # A dropped task does not come back.
    tried = stage.notes("/sick/stuck").count("first")
    stage.write("stuck", now, "1", "first")
    stage.write("other", now, "1", "of another queue")
    until(lambda: "of another queue" in stage.notes("/sick/stuck"), "another queue goes on")
    stage.receiver.open_gate("stuck")
    until(lambda: stage.task(now + 1, "stuck", "2").json["task"]["status"] == "Success", "the second has run")
    assert stage.notes("/sick/stuck").count("first") == tried


def test_the_admin_api_lists_incomplete_tasks_by_time(stage: TaskStage) -> None:
    assert "Scheduler Admin API is running" in stage.ask("/api/v1/status").json["status"]
    assert stage.machine.call("GET", "/status").status == 200
    start = now_ms() + HOUR_MS
    for n in range(5):
        stage.write(f"q{n % 2}", start + 1_000 * (n // 2), f"k{n}", str(n))
    stage.until_read()
    window = {"from": format_instant(start), "to": format_instant(start + 2_000), "limit": "10"}
    answer = stage.ask("/api/v1/tasks", **window).json
    keys = [task_key(start + 1_000 * (n // 2), f"q{n % 2}", f"k{n}") for n in range(4)]
    assert [task["key"] for task in answer["tasks"]] == keys
    assert (answer["errors"], {task["status"] for task in answer["tasks"]}) == ([], {"Incomplete"})
    some = stage.ask("/tasks", **{**window, "limit": "2", "fromOrderingId": "q1"}).json["tasks"]
    assert [task["key"] for task in some] == keys[1:3]
    for query, reason in (
        ({**window, "from": ""}, "are required params"),
        ({**window, "from": "asdf"}, "could not be parsed"),
        ({**window, "limit": "asdf"}, "Unparseable limit"),
        ({**window, "to": window["from"]}, "'from' must be before 'to'"),
    ):
        answer = stage.ask("/api/v1/tasks", **query)
        assert (answer.status, reason in answer.json["errors"][0]) == (400, True), answer
    assert stage.ask("/api/v1/task", key="notakey").json["errors"] == ["key: Unable to parse provided task key"]
    assert stage.ask("/task", key=task_key(start, "no", "such")).status == 404


def test_records_that_are_no_tasks_are_set_aside(stage: TaskStage) -> None:
    good = {
        "version": 1,
        "orderingId": "q",
        "scheduledTime": format_instant(now_ms() - 1_000),
        "uniquenessKey": "k",
        "taskData": {"note": "good"},
    }
    bad = [b"", b"{", b"[]"] + [
        json.dumps({**good, **wrong}).encode()
        for wrong in (
            {"orderingId": ""},
            {"orderingId": None},
            {"scheduledTime": "soon"},
            {"uniquenessKey": 5},
            {"taskData": "text"},
            {"taskData": {"a": 1}},
            {"version": 2},
        )
    ]
    for value in bad:
        stage.send(value)
    stage.send(json.dumps(good).encode())
    stage.receiver.until_ended(1, "/ok/tasks")
    letters = stage.topics.read(stage.refused, len(bad))
    assert sorted(letter.value or b"" for letter in letters) == sorted(bad)
    assert all(letter.headers for letter in letters)


def test_two_nodes_share_the_tasks_and_one_goes_on_while_the_other_is_away(tmp_path: Path) -> None:
    server = shared.kafka()
    topics = Topics(server)
    source = topics.new(4)
    properties = tmp_path / "kafka.properties"
    properties.write_text(PROPERTIES)
    kafka = ["--kafka-brokers", server.address, "--kafka-properties", str(properties)]
    kafka += ["--kafka-topics", f"{source}=pd:pagerduty", "--kafka-group", server.fresh_name()]
    with Receiver(1) as receiver:
        config = tmp_path / "everbell.toml"
        config.write_text(f'[tenants.pd]\nto = "{receiver.url("/ok/tasks")}"\n')
        options = (*kafka, "--config", str(config), "--facade", "pagerduty=pd", "--lease", "1s")
        with Fleet(tmp_path, shared.postgres().fresh_schema(), *options) as fleet:
            fleet.grow("n1", "n2")
            fleet.until_balanced("n1", "n2")
            soon = now_ms() + 3_000

            def write(first: int, count: int) -> None:
                for n in range(first, first + count):
                    task = {"version": 1, "orderingId": f"q{n % 5}", "scheduledTime": format_instant(soon + n)}
                    task |= {"uniquenessKey": f"k{n}", "taskData": {"note": str(n)}}
                    topics.send(source, json.dumps(task).encode(), key=f"q{n % 5}".encode())
                topics.flush()

            write(0, 50)
            fleet.kill("n2")
            write(50, 50)
            receiver.until_ended(100, "/ok/tasks")
            fleet.nodes["n2"].start()
            write(100, 50)
            until(lambda: len(ran(receiver)) == 150, lambda: f"{len(ran(receiver))} of 150 ran")
            for queue in range(5):
                mine = [n for n in ran(receiver) if n % 5 == queue]
                assert mine == sorted(mine), mine


def ran(receiver: Receiver) -> list[int]:
    """The numbers of the tasks that ran, in the order of their first beginnings."""
    begun = sorted(receiver.on("/ok/tasks"), key=lambda one: one.order)
    return list(dict.fromkeys(int(json.loads(one.body)["taskData"]["note"]) for one in begun))
