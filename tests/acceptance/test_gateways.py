"""Gateways under load: any process may die; acknowledged events arrive in order, and the other processes continue."""

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
    """The gateway processes that the engine's process has started."""
    pid = machine.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(child) for child in children.split()}


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie; it need not be a child of this process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> None:
    until(lambda: not is_running(pid), "the process has ended")


def until_replaced(machine: Machine, gone: set[int]) -> set[int]:
    """Wait until there are two gateways again; returns them."""
    until(lambda: len(gateways_of(machine) - gone) == 2, "the gateway is replaced")
    return gateways_of(machine)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_gateway_is_replaced_and_the_other_continues(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with Receiver(seed) as receiver, Machine(tmp_path, *TWO) as machine:
        before = gateways_of(machine)
        victim, survivor = dice.sample(sorted(before), 2)
        load = Load(machine, receiver, Shape(EVENTS, plain=0.1), seed)
        load.start()
        load.until_acknowledged(dice.randrange(EVENTS // 10, EVENTS // 2))
        os.kill(victim, signal.SIGKILL)
        assert load.working, "the kill came after the end of the load"
        load.finish()
        load.drain()
        assert load.violations() == []
        assert survivor in until_replaced(machine, {victim})
        # From here on only the new gateway serves requests.
        os.kill(survivor, signal.SIGKILL)
        machine.until_status(machine.schedule(receiver.url("/ok"), tenant="other"), "delivered", "other")
        until_replaced(machine, before)
        assert machine.log.count("a gateway ended with code -9") == 2
        assert machine.stop() == 0


def test_a_frozen_gateway_keeps_no_connection_waiting(tmp_path: Path) -> None:
    with Machine(tmp_path, *TWO) as machine, ExitStack() as connections:
        still, other = sorted(gateways_of(machine))
        before = _sockets(other)
        os.kill(still, signal.SIGSTOP)  # It has no connections, so it is offered each new one first.
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


def test_events_are_delivered_while_all_gateways_are_dead(tmp_path: Path) -> None:
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
    """A server that is asked to end lets attempts in flight finish, so that no delivery is repeated."""
    with Receiver() as receiver, Machine(tmp_path, *options) as machine:
        load = Load(machine, receiver, Shape(EVENTS, paths=("/ok", "/slow/5", "/slow/50"), plain=0.1), 1)
        load.start()
        for moment in (EVENTS // 5, EVENTS // 2):
            load.until_acknowledged(moment)
            gateways = gateways_of(machine)
            assert machine.stop() == 0
            assert not any(map(is_running, gateways))
            machine.start()
        assert load.working, "the stops came after the end of the load"
        load.finish()
        load.drain()
        assert load.violations() == []
        bodies = [received.body for received in receiver.received]
        assert len(bodies) == len(set(bodies))


def test_all_processes_may_be_asked_to_end_at_once(tmp_path: Path) -> None:
    """systemd signals all processes of a service at once."""
    with Machine(tmp_path, *TWO) as machine:
        for pid in (machine.process.pid, *gateways_of(machine)):
            os.kill(pid, signal.SIGTERM)
        assert machine.code == 0
        assert "Traceback" not in machine.log


def test_with_a_slow_disk_gateways_acknowledge_only_synced_events(tmp_path: Path, strace: Strace) -> None:
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
