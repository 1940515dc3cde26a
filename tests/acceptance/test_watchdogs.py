"""A server that stands still says so: a blocked event loop, and due events that do not start."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver


def metrics_of(machine: Machine) -> str:
    return machine.call("GET", "/metrics").body.decode()


@pytest.mark.parametrize(("gateways", "process"), [("0", "engine"), ("2", "gateway")])
def test_a_blocked_loop_is_logged_with_its_stack_and_counted(tmp_path: Path, gateways: str, process: str) -> None:
    """The audit log is a pipe that is not read, so the first line of it blocks the loop until the test reads."""
    pipe = tmp_path / "audit"
    os.mkfifo(pipe)
    with Machine(tmp_path, "--gateways", gateways, "--audit-file", str(pipe)) as machine:
        paused = threading.Thread(
            target=machine.call, args=("POST", "/v1/tenants/shop/pauses", {"what": "queue", "name": "mail"})
        )
        paused.start()
        until(lambda: "blocked for more than a second, by:" in machine.log, lambda: machine.log)
        assert "in _append" in machine.log
        reader = os.open(pipe, os.O_RDONLY)
        try:
            paused.join()
            until(lambda: "the event loop was blocked for" in machine.log, lambda: machine.log)
            counted = f'everbell_loop_blocks_total{{process="{process}"}} 1'
            until(lambda: counted in metrics_of(machine), lambda: metrics_of(machine))
        finally:
            os.close(reader)


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_due_events_that_do_not_start_make_healthz_fail(tmp_path: Path, gateways: str) -> None:
    machine = Machine(tmp_path, "--gateways", gateways)
    machine.start(sys.executable, "-m", "tests.acceptance.stuck_server")
    with Receiver(1) as receiver, machine:
        assert machine.call("GET", "/healthz").status == 200
        event = machine.schedule(receiver.url("/status/200"))
        until(lambda: machine.call("GET", "/healthz").status == 503, lambda: machine.log)
        health = machine.call("GET", "/healthz").json
        assert health["state"] == "broken"
        assert "the dispatcher does not start them" in health["reason"]
        assert "the dispatcher does not start them" in machine.log
        assert machine.metric("stalled") == 1
        machine.kill()
        machine.start()
        machine.until_status(event, "delivered")
        assert machine.call("GET", "/healthz").status == 200
