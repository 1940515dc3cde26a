"""Gateways under load: whichever process dies, what was acknowledged arrives, in order, and the others go on."""

from __future__ import annotations

import http.client
import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import Strace
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import PATIENCE_S, Machine, until
from tests.acceptance.receiver import Receiver
from tests.acceptance.test_crash_points import FIRST_LOG

TWO = ("--gateways", "2")
EVENTS = 900


def gateways_of(machine: Machine) -> set[int]:
    """The processes that the engine's process has started."""
    pid = machine.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(child) for child in children.split()}


def is_running(pid: int) -> bool:
    """Whether a process that need not be a child of this one is there, and is more than a name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> None:
    until(lambda: not is_running(pid), "the process has ended")


def until_replaced(machine: Machine, gone: set[int]) -> set[int]:
    """Wait until there are two again; returns them."""
    until(lambda: len(gateways_of(machine) - gone) == 2, "another gateway in its place")
    return gateways_of(machine)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_gateway_that_is_killed_is_replaced_and_the_other_goes_on(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with Receiver(seed) as receiver, Machine(tmp_path, *TWO) as machine:
        before = gateways_of(machine)
        victim, survivor = dice.sample(sorted(before), 2)
        load = Load(machine, receiver, Shape(EVENTS, plain=0.1), seed)
        load.start()
        load.until_acknowledged(dice.randrange(EVENTS // 10, EVENTS // 2))
        os.kill(victim, signal.SIGKILL)
        assert load.working, "the kill came too late to disturb anybody"
        load.finish()
        load.drain()
        assert load.violations() == []
        assert survivor in until_replaced(machine, {victim})
        # Now everything depends on the new one.
        os.kill(survivor, signal.SIGKILL)
        machine.until_status(machine.schedule(receiver.url("/ok"), tenant="other"), "delivered", "other")
        until_replaced(machine, before)
        assert machine.log.count("a gateway ended with code -9") == 2
        assert machine.stop() == 0


def test_a_gateway_that_stands_still_keeps_no_connection_waiting(tmp_path: Path) -> None:
    with Machine(tmp_path, *TWO) as machine, ExitStack() as connections:
        still, other = sorted(gateways_of(machine))
        before = _sockets(other)
        os.kill(still, signal.SIGSTOP)  # It has none, so each connection is left to it first.
        connections.callback(os.kill, still, signal.SIGCONT)
        address = urlsplit(machine.url)
        for _ in range(5):
            connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
            connections.callback(connection.close)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
        assert _sockets(other) == before + 5


def _sockets(process: int) -> int:
    return sum("socket:" in str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir())


def test_all_gateways_are_killed_at_once_and_events_go_out_all_the_same(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path, *TWO) as machine:
        machine.schedule_many([{"in": "300ms", "to": receiver.url("/ok"), "payload": n} for n in range(100)])
        killed = gateways_of(machine)
        for gateway in killed:
            os.kill(gateway, signal.SIGKILL)
        receiver.until_ended(100, "/ok")
        until_replaced(machine, killed)
        machine.until_status(machine.schedule(receiver.url("/ok")), "delivered")


@pytest.mark.parametrize("seed", [1, 2])
def test_when_the_engine_is_killed_its_gateways_end_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    moments = sorted(dice.randrange(EVENTS // 10, EVENTS * 2 // 3) for _ in range(3))
    with Receiver(seed) as receiver, Machine(tmp_path, *TWO) as machine:
        load = Load(machine, receiver, Shape(EVENTS, plain=0.1), seed)
        load.start()
        for moment in moments:
            load.until_acknowledged(moment)
            gateways = gateways_of(machine)
            machine.kill()
            for gateway in gateways:
                until_gone(gateway)
            machine.start()
        load.finish()
        load.drain()
        assert load.violations() == []


@pytest.mark.parametrize("options", [(), TWO])
def test_a_stop_under_load_loses_nothing_and_repeats_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Asked to end, it lets what is under way come to its end, so that nobody is called twice."""
    with Receiver() as receiver, Machine(tmp_path, *options) as machine:
        load = Load(machine, receiver, Shape(EVENTS, paths=("/ok", "/slow/5", "/slow/50"), plain=0.1), 1)
        load.start()
        for moment in (EVENTS // 5, EVENTS // 2):
            load.until_acknowledged(moment)
            gateways = gateways_of(machine)
            assert machine.stop() == 0
            assert not any(map(is_running, gateways))
            machine.start()
        assert load.working, "the stops came too late to disturb anybody"
        load.finish()
        load.drain()
        assert load.violations() == []
        bodies = [received.body for received in receiver.received]
        assert len(bodies) == len(set(bodies))


def test_all_processes_may_be_asked_to_end_at_once(tmp_path: Path) -> None:
    """As systemd does it."""
    with Machine(tmp_path, *TWO) as machine:
        for pid in (machine.process.pid, *gateways_of(machine)):
            os.kill(pid, signal.SIGTERM)
        assert machine.code == 0
        assert "Traceback" not in machine.log


def test_with_a_slow_disk_gateways_acknowledge_only_what_is_synced(tmp_path: Path, strace: Strace) -> None:
    machine = Machine(tmp_path, *TWO)
    machine.start(*strace("inject=fdatasync:delay_enter=100000", file=machine.store / FIRST_LOG))
    with machine, Receiver() as receiver:
        load = Load(machine, receiver, Shape(events=200, clients=12, lead_ms=300, plain=0.3), 1)
        load.start()
        load.until_acknowledged(60)
        machine.kill()
        machine.start()
        load.finish()
        load.drain()
        assert load.violations() == []
