"""Workers as real processes: they handle, retry, stop, die, and survive an outage of their server."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from everbell.client.blocking import Client
from tests.acceptance.machine import until
from tests.acceptance.processes import CommandLine, RunningCommand, ServerProcess

APP = """
import asyncio, os, signal, sys, threading
from everbell import App, Occurrence, Refuse

app = App()
released = asyncio.Event()

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

@app.on("plain")
def plain(event: Occurrence) -> None:
    say("plain", event.payload, "attempt", event.attempt, threading.current_thread() is threading.main_thread())
    if event.payload == "flaky" and event.attempt == 1:
        raise ValueError("not today")

@app.on("async")
async def awaited(event: Occurrence) -> None:
    say("async", event.id, "attempt", event.attempt)
    if event.payload == "refuse":
        raise Refuse("never")

@app.on("pids")
async def pids(event: Occurrence) -> None:
    say("pid", os.getpid())

@app.on("stuck")
def stuck(event: Occurrence) -> None:
    say("stuck")
    threading.Event().wait()

@app.on("slow")
async def slow(event: Occurrence) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, released.set)
    say("begun", event.id, "attempt", event.attempt)
    await released.wait()
    say("ended", event.id)
"""

RELEASE = signal.SIGUSR1
"""Lets the slow handler end."""
RETRY = {"max_attempts": 5, "backoff": "10ms", "max_backoff": "20ms"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, store=f"rocksdb:{tmp_path}/data") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as ready:
        yield ready


def begin_worker(server: ServerProcess, folder: Path, *options: str) -> RunningCommand:
    (folder / "jobs.py").write_text(APP)
    return CommandLine(server.url).begin("worker", "jobs:app", *options, folder=folder)


def until_delivered(client: Client, event_id: str) -> None:
    """Wait until the server has recorded the delivery."""
    for _ in range(10_000):
        if client.get(event_id).status == "delivered":
            return
    raise AssertionError(f"{event_id} was not delivered: {client.get(event_id)}")


def test_events_are_handled_retried_and_refused(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path, "--json") as worker:
        client.schedule("hello", to="queue:plain", in_=0)
        assert worker.line() == "plain hello attempt 1 False"
        client.schedule("flaky", to="queue:plain", in_=0, retry=RETRY, id="flaky")
        assert worker.line() == "plain flaky attempt 1 False"
        assert worker.line() == "plain flaky attempt 2 False"
        client.schedule("refuse", to="queue:async", in_=0, id="refused")
        assert worker.line() == "async refused attempt 1"
        worker.send(signal.SIGTERM)
        done = worker.end()
    assert done.code == 0
    assert done.documents == [{"handled": 2, "failed": 2}]
    assert "Traceback" not in done.err
    flaky, refused = client.get("flaky"), client.get("refused")
    assert (flaky.status, [attempt.result for attempt in flaky.attempts]) == ("delivered", ["failed", "delivered"])
    assert re.fullmatch(r"ValueError: not today \[\w+\.py:\d+ in \w+\]", flaky.attempts[0].reason or "")
    assert (refused.status, refused.reason) == ("dead", "never")


def test_the_log_of_a_worker_can_be_json(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path, "--log-format", "json") as worker:
        client.schedule("hello", to="queue:plain", in_=0)
        assert worker.line() == "plain hello attempt 1 False"
        worker.send(signal.SIGTERM)
        done = worker.end()
    lines = [json.loads(line) for line in done.err.splitlines()]
    assert lines[0]["message"].startswith("pulling from ")
    assert {(line["level"], line["logger"]) for line in lines} == {("info", "everbell.worker")}


def test_a_running_handler_finishes_after_sigterm(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path) as worker:
        client.schedule(1, to="queue:slow", in_=0, id="slow")
        assert worker.line() == "begun slow attempt 1"
        worker.send(signal.SIGTERM)
        worker.send(RELEASE)
        assert worker.line() == "ended slow"
        assert worker.end().code == 0
    assert client.get("slow").status == "delivered"


def test_a_stopped_worker_gives_unfinished_events_back(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path, "--grace", "0s") as worker:
        client.schedule(1, to="queue:slow", in_=0, id="slow", retry=RETRY)
        assert worker.line() == "begun slow attempt 1"
        worker.send(signal.SIGTERM)
        assert worker.end().code == 0
    event = client.get("slow")
    assert event.attempts[0].reason == "the worker stopped before this was done"
    with begin_worker(server, tmp_path) as worker:
        assert worker.line() == "begun slow attempt 2"
        worker.send(RELEASE)
        assert worker.line() == "ended slow"
        until_delivered(client, "slow")


def test_a_thread_that_never_ends_does_not_keep_a_worker_from_stopping(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    with begin_worker(server, tmp_path, "--grace", "1h") as worker:
        client.schedule(1, to="queue:stuck", in_=0, id="stuck", retry={"max_attempts": 1})
        assert worker.line() == "stuck"
        worker.send(signal.SIGTERM)
        worker.send(signal.SIGINT)
        done = worker.end()
    assert done.code == 1
    assert "1 handlers did not end in time" in done.err
    assert client.get("stuck").status == "dead"


def test_a_killed_worker_loses_no_event(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path, "--lease", "500ms") as worker:
        client.schedule(1, to="queue:slow", in_=0, id="slow", retry=RETRY)
        assert worker.line() == "begun slow attempt 1"
        worker.process.kill()
    with begin_worker(server, tmp_path) as worker:
        assert worker.line() == "begun slow attempt 2"
        worker.send(RELEASE)
        assert worker.line() == "ended slow"
        until_delivered(client, "slow")


def test_a_lease_lives_as_long_as_its_handler(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path, "--lease", "300ms") as worker:
        client.schedule(1, to="queue:slow", in_=0, id="slow", retry=RETRY)
        assert worker.line() == "begun slow attempt 1"
        client.schedule("later", to="queue:plain", in_="1s")
        assert worker.line() == "plain later attempt 1 False"  # Three leases later.
        worker.send(RELEASE)
        assert worker.line() == "ended slow"
        worker.send(signal.SIGTERM)
        assert worker.end().code == 0
    assert client.get("slow").attempt_count == 1


def test_a_worker_continues_when_its_server_is_back(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path) as worker:
        client.schedule("before", to="queue:plain", in_=0, id="before")
        assert worker.line() == "plain before attempt 1 False"
        until_delivered(client, "before")
        server.kill()
        server.start()
        client.schedule("after", to="queue:plain", in_=0, id="after")
        assert worker.line() == "plain after attempt 1 False"
        worker.send(signal.SIGINT)
        done = worker.end()
    assert done.code == 0
    assert "nothing can be leased, trying again" in done.err
    assert "the server is back" in done.err


def test_a_named_worker_and_the_wait_for_it_are_seen_through_gateways(tmp_path: Path) -> None:
    options = ("--gateways", "2", "--log-format", "json")
    with ServerProcess(tmp_path, *options, store=f"rocksdb:{tmp_path}/data") as server, Client(server.url) as client:
        client.schedule("hello", to="queue:plain", in_=0, id="unserved")
        until(lambda: [queue.waiting for queue in client.queues().queues] == [1], "the event waits for a worker")
        why = client.get("unserved").why
        assert why is not None
        assert (why.code, why.queue) == ("no-worker", "plain")
        assert "why        No worker has called for the queue plain" in CommandLine(server.url)("show", "unserved").out

        with begin_worker(server, tmp_path, "--name", "plain-1", "--queue", "plain", "--queue", "slow") as worker:
            assert worker.line() == "plain hello attempt 1 False"
            until_delivered(client, "unserved")
            queues = {queue.name: queue for queue in client.queues().queues}
            assert queues.keys() == {"plain", "slow"}, "it pulls from the named queues only"
            (seen,) = queues["plain"].workers
            assert (seen.name, seen.queues) == ("plain-1", ("plain", "slow"))
            assert queues["plain"].last_minute.delivered == 1
            assert "plain-1" in CommandLine(server.url)("queues").out
            worker.send(signal.SIGTERM)
            worker.end()


def workers_of(client: Client, queue: str) -> set[str]:
    """The names of the workers of a queue, as the server has seen them."""
    return {worker.name for each in client.queues().queues if each.name == queue for worker in each.workers}


def test_several_processes_share_the_queues_and_a_killed_one_is_replaced(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    options = ("--processes", "2", "--name", "jobs", "--queue", "pids", "--lease", "500ms")
    with begin_worker(server, tmp_path, *options) as worker:
        until(lambda: workers_of(client, "pids") == {"jobs-1", "jobs-2"}, "both processes pull")
        client.schedule(1, to="queue:pids", in_=0)
        child = int(worker.line().removeprefix("pid "))
        assert child != worker.process.pid
        os.kill(child, signal.SIGKILL)
        for number in range(20):
            client.schedule(number, to="queue:pids", in_=0, retry=RETRY)  # The dead process may have leased some.
        others = {int(worker.line().removeprefix("pid ")) for _ in range(20)}
        assert child not in others
        worker.send(signal.SIGTERM)
        done = worker.end()
    assert done.code == 0
    assert "ended with code -9; starting another" in done.err


def test_processes_stop_with_their_parent(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path, "--processes", "2", "--queue", "slow", "--queue", "pids") as worker:
        client.schedule(1, to="queue:pids", in_=0)
        child = int(worker.line().removeprefix("pid "))
        worker.process.kill()
        until(lambda: not Path(f"/proc/{child}").exists(), "the child has ended")


def test_an_app_that_cannot_be_loaded_ends_all_processes(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("app = 1")
    command = CommandLine(server.url).begin("worker", "broken:app", "--processes", "2", folder=tmp_path)
    with command as worker:
        done = worker.end()
    assert done.code > 0
    assert "broken:app is a int, not an everbell.App" in done.err


def test_a_worker_restarts_when_a_file_changes(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    with begin_worker(server, tmp_path, "--reload", "--queue", "pids") as worker:
        client.schedule(1, to="queue:pids", in_=0)
        assert worker.line().startswith("pid ")
        (tmp_path / "jobs.py").write_text("a syntax error")
        until(lambda: "waiting for a change" in worker.errors(), "the broken module was loaded")
        (tmp_path / "jobs.py").write_text(APP.replace('"pid"', '"new"'))
        client.schedule(2, to="queue:pids", in_=0)
        assert worker.line().startswith("new ")
        worker.send(signal.SIGINT)
        assert worker.end().code == 0
