"""Flask: the application of the guide with a real server and worker, and an application from a factory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from everbell.client.blocking import Client
from tests.acceptance.guide_stage import GuideApplication, call, write_files
from tests.acceptance.machine import until
from tests.acceptance.processes import ServerProcess

GUIDE = Path(__file__).parents[2] / "docs/flask.md"

FACTORY = """
import sys
from flask import Flask, current_app
from everbell import Occurrence, Refuse
from everbell.contrib.flask import FlaskBell, client

bell = FlaskBell()

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

@bell.on("plain")
def plain(event: Occurrence) -> None:
    say("plain", current_app.name, event.payload)

@bell.task(queue="tasks")
async def awaited(number: int) -> None:
    say("awaited", current_app.name, number)

@bell.task(queue="tasks", concurrency=1)
def scheduling(number: int) -> None:
    client().schedule(number, to="queue:plain", in_=0)

def create_app():
    app = Flask("made")
    app.config["EVERBELL_TENANT"] = "shop"
    bell.init_app(app)
    return app
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("everbell")) as running:
        yield running


def application(server: ServerProcess, folder: Path) -> GuideApplication:
    assert write_files(GUIDE, folder, {}) == ["shop.py"]
    (folder / "factory.py").write_text(FACTORY)
    return GuideApplication(folder, {"EVERBELL_SERVER": server.url})


def test_the_application_of_the_guide_runs(server: ServerProcess, tmp_path: Path) -> None:
    shop = application(server, tmp_path)
    worker_command = ("-m", "flask", "--app", "shop", "everbell", "worker", "--concurrency", "2")
    with shop.serve("shop:app") as web, shop.begin(*worker_command) as worker:
        port = web.line()
        status, placed = call(port, "/orders/7")
        assert (status, placed["id"], placed["created"]) == (201, "remind-7", True)
        assert call(port, "/orders/7")[1]["created"] is False
        assert call(port, "/orders/7/reminder", "GET")[1]["payload"] == {"number": 7}
        call(port, "/orders/7/nudge")
        assert worker.line() == "shop order 7 is not paid yet"
        assert call(port, "/orders/7/paid")[1]["status"] == "cancelled"
        worker.send(signal.SIGTERM)
        assert worker.end().code == 0


def test_tasks_and_handlers_of_a_factory_run_in_its_context(server: ServerProcess, tmp_path: Path) -> None:
    made = application(server, tmp_path)
    command = ("-m", "flask", "--app", "factory", "everbell", "worker", "--processes", "2", "--name", "flask")
    with made.begin(*command) as worker, Client(server.url, "shop") as client:
        client.schedule(1, to="queue:plain", in_=0)
        assert worker.line() == "plain made 1"
        client.schedule(2, to="queue:tasks", in_=0, headers={"x-everbell-task": "awaited"})
        assert worker.line() == "awaited made 2"
        client.schedule(3, to="queue:tasks", in_=0, headers={"x-everbell-task": "scheduling"})
        assert worker.line() == "plain made 3"
        until(lambda: _workers(client) >= {"flask-1", "flask-2"}, lambda: f"two workers: {_workers(client)}")
        worker.send(signal.SIGTERM)
        assert worker.end().code == 0


def _workers(client: Client) -> set[str]:
    return {worker.name for queue in client.queues().queues for worker in queue.workers}


def test_errors_of_the_worker_are_one_line(server: ServerProcess, tmp_path: Path) -> None:
    shop = application(server, tmp_path)
    done = shop.run("-m", "flask", "--app", "shop", "everbell", "worker", "--queue", "unknown")
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("Error: ")
    assert "the app has no handler for unknown" in done.err
    outside = shop.run("-c", "from everbell.contrib.flask import client; client()")
    assert "call this in a request or app.app_context()" in outside.err
