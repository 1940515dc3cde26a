"""The command line against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from everbell.client.blocking import Client
from everbell.client.queue_calls import Failure
from tests.acceptance.processes import EVERBELL, PATIENCE_S, CommandLine, ServerProcess

FAR = "2126-11-20T10:00:00Z"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def everbell(server: ServerProcess) -> CommandLine:
    return CommandLine(server.url)


def test_the_life_of_an_event(everbell: CommandLine) -> None:
    scheduled = everbell("schedule", '{"order": 17}', "--at", FAR, "--to", "queue:life", "--id", "life", "--key", "k")
    assert (scheduled.code, scheduled.err) == (0, "")
    assert scheduled.out.endswith("at 2126-11-20 10:00:00 UTC\n")
    again = everbell("schedule", '{"order": 17}', "--at", FAR, "--to", "queue:life", "--id", "life", "--key", "k")
    assert again.code == 0
    assert [event["id"] for event in everbell("list", "--key", "k", "--json").documents] == ["life"]
    assert "life" in everbell("list").out
    moved = everbell("reschedule", "life", "--in", "1h", "--version", "1", "--json")
    assert moved.documents[0]["version"] == 2
    outdated = everbell("reschedule", "life", "--in", "2h", "--version", "1")
    assert outdated.code == 1
    assert "version 2" in outdated.err
    assert '{"order":17}' in everbell("show", "life").out
    assert everbell("cancel", "life").out == "cancelled life\n"
    (shown,) = everbell("show", "life", "--json").documents
    assert shown["status"] == "cancelled"
    late = everbell("cancel", "life")
    assert (late.code, late.err) == (1, "everbell cancel: life: the event is already cancelled\n")


def test_refusals_name_the_field(everbell: CommandLine) -> None:
    refused = everbell("schedule", "1", "--in", "5s", "--to", "nowhere")
    assert refused.code == 1
    assert refused.err.startswith("everbell schedule: to: 'nowhere' is not a target")
    assert refused.err.count("\n") == 1


def test_a_file_of_events(everbell: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    lines = [json.dumps({"payload": n, "at": FAR, "tags": ["file"]}) for n in range(2_500)]
    lines[1_200] = '{"payload": 1, "at": "soon"}'
    path.write_text("\n".join(lines))
    done = everbell("schedule", f"@{path}", "--to", "queue:file")
    assert done.code == 1
    assert done.out == "scheduled 2,499 events, refused 1\n"
    assert done.err.startswith("everbell schedule: line 1201: at: ")
    listed = everbell("list", "--tag", "file", "--all", "--json").documents
    assert {event["payload"] for event in listed} == set(range(2_500)) - {1_200}
    assert everbell("list", "--tag", "file").err == "the first 50; --all shows all\n"
    assert everbell("cancel", "--tag", "file").out == "cancelled 2,499 events\n"


def test_events_from_standard_input(everbell: CommandLine) -> None:
    done = everbell("schedule", "-", "--lines", "--json", stdin='{"id": "in-1", "in": "1h", "to": "queue:in"}\n')
    assert done.documents == [{"line": 1, "id": "in-1", "status": "created"}]


def test_dead_events_can_be_redriven(everbell: CommandLine, server: ServerProcess) -> None:
    assert everbell("schedule", "1", "--in", "0s", "--to", "queue:dead", "--id", "unlucky").code == 0
    with Client(server.url) as client:
        (lease,) = client.lease("dead", wait="20s")
        client.fail("dead", [Failure(lease.token, "there is no such order", permanent=True)])
        shown = everbell("show", "unlucky").out
        assert "dead; `everbell redrive` gives it another chance" in shown
        assert "there is no such order" in shown
        assert [event["id"] for event in everbell("list", "--status", "dead", "--json").documents] == ["unlucky"]
        assert everbell("redrive", "unlucky").out == "redrove 1 event\n"
        (lease,) = client.lease("dead", wait="20s")
        client.ack("dead", [lease.token])
    assert everbell("show", "unlucky", "--json").documents[0]["status"] == "delivered"
    hopeless = everbell("redrive", "unlucky")
    assert (hopeless.code, hopeless.out) == (1, "")


def test_an_event_is_tried_and_delivered_on_demand(everbell: CommandLine, server: ServerProcess, port: int) -> None:
    hook = f"http://127.0.0.1:{port}/hook"
    assert everbell("schedule", "1", "--at", FAR, "--to", hook, "--id", "hook", "--retry-attempts", "1").code == 0
    tried = everbell("deliver", "hook", "--dry-run")
    assert tried.code == 1
    assert tried.out.startswith("hook: failed, connect: ")
    assert everbell("show", "hook", "--json").documents[0]["status"] == "scheduled"
    assert everbell("schedule", "1", "--at", FAR, "--to", "queue:now", "--id", "now").code == 0
    assert everbell("deliver", "now").out == "now rings now\n"
    with Client(server.url) as client:
        (lease,) = client.lease("now", wait="20s")
        client.ack("now", [lease.token])
    late = everbell("deliver", "now")
    assert (late.code, late.out) == (1, "")
    assert "everbell deliver: the event is already delivered" in late.err


def test_a_closed_output_pipe_ends_the_command_quietly(server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.schedule_many(
            {"payload": "x" * 1_000, "at": FAR, "to": "queue:pipe", "tags": ["pipe"]} for _ in range(1_000)
        )
    command = [*EVERBELL, "list", "--tag", "pipe", "--all", "--json", "--server", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        assert listing.stdout.readline().startswith(b'{"id":')
        listing.stdout.close()
        assert (listing.stderr.read(), listing.wait(PATIENCE_S)) == (b"", 141)


def test_an_unreachable_server_is_reported(port: int) -> None:
    done = CommandLine(f"http://127.0.0.1:{port}")("list")
    assert done.code == 3
    assert "Nothing was sent: check the address, and that the server runs" in done.err
    assert done.err.count("\n") == 1


def test_the_demo_prints_all_its_steps_and_ends() -> None:
    done = CommandLine()("demo", "--fast")
    assert (done.code, done.err) == (0, "")
    for part in (
        "never before",
        "tick 3",
        "billed, attempt 1",
        "the invoice, attempt 3",
        "nothing came",
        "hello Barbara",
    ):
        assert part in done.out
    assert "\x1b" not in done.out


def test_the_demo_can_be_interrupted() -> None:
    with CommandLine().begin("demo") as demo:
        while "scheduled" not in demo.line():
            pass
        demo.send(signal.SIGINT)
        done = demo.end()
    assert (done.code, done.err) == (130, "")


def test_a_store_that_is_not_in_use_can_be_backed_up(tmp_path: Path) -> None:
    store = f"rocksdb:{tmp_path}/data"
    everbell = CommandLine()
    with ServerProcess(tmp_path, store=store) as server:
        with Client(server.url) as client:
            client.schedule(1, to="queue:q", at=FAR, id="kept")
        busy = everbell("backup", "--store", store, f"{tmp_path}/copy")
        assert busy.code == 1
        assert "is in use by another process" in busy.err
        assert server.stop() == 0
        assert everbell("backup", "--store", store, f"{tmp_path}/copy").code == 0
    with ServerProcess(tmp_path, store=f"rocksdb:{tmp_path}/copy") as server, Client(server.url) as client:
        assert client.get("kept").status == "scheduled"
