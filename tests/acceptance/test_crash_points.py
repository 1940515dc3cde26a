"""Kills at chosen system calls: before a write of the log, between write and sync, and before an answer is sent.

RocksDB appends to its log with `write` on the loop's thread and syncs it with `fdatasync` on the sync thread; the first
log of a new store has a known name.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import Strace
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver

FIRST_LOG = "000004.log"
SMALL = Shape(events=90, clients=3, keys=2, lead_ms=300, plain=0.1)


@pytest.mark.parametrize(
    ("call", "when", "file"),
    [
        ("write", 1, FIRST_LOG),  # While the store is created.
        ("write", 3, FIRST_LOG),  # While the engine takes its partitions.
        ("write", 5, FIRST_LOG),
        ("write", 17, FIRST_LOG),
        ("fdatasync", 1, FIRST_LOG),
        ("fdatasync", 3, FIRST_LOG),
        ("fdatasync", 14, FIRST_LOG),
        ("fsync", 2, None),
        (
            "epoll_pwait",
            30,
            None,
        ),  # Between two iterations of the loop: stored and not answered yet, or the reverse.
        ("epoll_pwait", 77, None),
    ],
)
def test_a_kill_at_a_system_call_loses_nothing(
    tmp_path: Path, strace: Strace, call: str, when: int, file: str | None
) -> None:
    machine = Machine(tmp_path)
    wrapper = strace(f"inject={call}:signal=KILL:when={when}", file=machine.store / file if file else None)
    started = machine.tries_to_start(*wrapper)
    with machine, Receiver() as receiver:
        if not started:
            machine.start()
        load = Load(machine, receiver, SMALL, when)
        load.start()
        until(lambda: machine.starts == 2 or machine.ended, "dead")
        if machine.ended:
            machine.start()
        load.finish()
        load.drain()
        assert load.violations() == []
        assert machine.stop() == 0


def test_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path, strace: Strace) -> None:
    """A slow disk: every sync takes 300 ms. Requests that arrive meanwhile share the next sync."""
    machine = Machine(tmp_path)
    delay_s = 0.3
    delayed = strace(f"inject=fdatasync:delay_enter={int(delay_s * 1_000_000)}", file=machine.store / FIRST_LOG)
    machine.start(*delayed)
    with machine, Receiver() as receiver:
        asked_at = time.monotonic()
        machine.schedule(receiver.url("/ok"))
        assert time.monotonic() - asked_at >= delay_s
        assert receiver.until_ended(1, "/ok")
        shape = Shape(events=96, clients=24, batched=0, lead_ms=200)
        load = Load(machine, receiver, shape, 1)
        receiver.received.clear()
        load.run()
        syncs = (tmp_path / "trace").read_text().count("fdatasync(")
        assert 1 < syncs < 96, "requests do not share syncs"
        machine.kill()
        machine.start()
        load.drain()
        assert load.violations() == []
