"""Disks that are full, fail or rot: every acknowledged event is kept, and no event is lost silently."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.conftest import Strace
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver
from tests.acceptance.test_crash_points import FIRST_LOG

MIB = 1 << 20
EVENTS = "/v1/tenants/shop/events"
BROKEN = 74


def fill(disk: Path, leave: int = 0) -> Path:
    """Fill up the disk but for `leave` bytes; removing the returned file frees the space again."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 << 10))
        except OSError:
            pass
        file.truncate(max(file.tell() - leave, 0))
    return ballast


def held(receiver: Receiver, machine: Machine, gate: str, count: int) -> list[str]:
    """Events whose deliveries are in flight until the gate is opened."""
    ids = machine.schedule_many([{"in": 0, "to": receiver.url(f"/gate/{gate}")} for _ in range(count)])
    until(lambda: len(receiver.on(f"/gate/{gate}")) == count, "all are in flight")
    return ids


def test_below_the_reserve_intake_is_refused_and_stored_events_finish(small_disk: Path, tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path, "--reserve-disk", "8MiB", store=small_disk / "store") as machine:
        later = machine.schedule_many([{"in": "1h", "to": receiver.url("/ok")} for _ in range(20)])
        soon = held(receiver, machine, "g", 20)
        ballast = fill(small_disk, leave=4 * MIB)
        refused = machine.call("POST", EVENTS, {"in": 0, "to": receiver.url("/refused"), "id": "refused"})
        assert (refused.status, refused.headers["content-type"]) == (507, "application/problem+json")
        assert "make room" in refused.json["detail"]
        assert machine.call("POST", EVENTS + "/batch", [{"in": 0, "to": receiver.url("/refused")}] * 3).status == 507
        plain = b'{"at":"2020-01-01T00:00:00Z","to":"%b"}\n' % receiver.url("/refused").encode() * 40
        assert machine.call("POST", EVENTS + "/batch", plain).status == 507
        receiver.open_gate("g")
        for event_id in later:
            assert machine.call("POST", f"{EVENTS}/{event_id}/deliver").status == 200
        for event_id in [*soon, *later]:
            machine.until_status(event_id, "delivered")
        ballast.unlink()
        machine.until_status(machine.schedule(receiver.url("/ok")), "delivered")
        assert machine.call("GET", f"{EVENTS}/refused").status == 404
        assert receiver.on("/refused") == []
        assert len(receiver.received) == 41


def test_on_a_full_disk_stored_events_are_still_delivered(small_disk: Path, tmp_path: Path) -> None:
    """No byte is left: outcomes cannot be written and wait for space, and no delivery is repeated because of that."""
    with Receiver() as receiver, Machine(tmp_path, "--reserve-disk", "0B", store=small_disk / "store") as machine:
        soon = machine.schedule_many([{"in": "1500ms", "to": receiver.url("/ok"), "key": "k"} for _ in range(2)])
        soon += machine.schedule_many([{"in": "1500ms", "to": receiver.url("/ok")} for _ in range(30)])
        ballast = fill(small_disk)
        refused = until(
            lambda: [
                answer
                for _ in range(20)
                if (
                    answer := machine.call("POST", EVENTS, {"in": "1h", "to": "queue:q", "payload": "x" * 9_000})
                ).status
                != 201
            ],
            "full",
        )
        assert {answer.status for answer in refused} == {507}
        receiver.until_ended(31, "/ok")  # The key's second event waits until the first one has ended.
        assert machine.call("POST", EVENTS, {"in": "1h", "to": "queue:q", "payload": "x" * 9_000}).status == 507
        assert machine.call("GET", "/readyz").status == 200
        ballast.unlink()
        for event_id in soon:
            machine.until_status(event_id, "delivered")
        machine.until_status(machine.schedule(receiver.url("/ok")), "delivered")
        assert len(receiver.received) == 33
        assert machine.stop() == 0
        machine.start()
        assert machine.event(soon[0])["status"] == "delivered"


def test_a_write_that_finds_no_room_is_refused_and_the_next_one_works(tmp_path: Path, strace: Strace) -> None:
    machine = Machine(tmp_path)
    machine.start(*strace("inject=write:error=ENOSPC:when=12", file=machine.store / FIRST_LOG))
    with machine, Receiver() as receiver:
        # One request at a time, so that the failing write is that of a new event.
        path = "/v1/tenants/one-by-one/events"
        answers = [machine.call("POST", path, {"in": "1h", "to": "queue:q", "id": f"e{n}"}) for n in range(12)]
        statuses = [answer.status for answer in answers]
        assert sorted(statuses) == [201] * 11 + [507]
        refused = statuses.index(507)
        assert refused < 11, "no request succeeded after the refused one"
        assert "make room" in answers[refused].json["detail"]
        load = Load(machine, receiver, Shape(events=60, clients=2, lead_ms=200, plain=0.1), 1)
        load.run()
        machine.kill()
        machine.start()
        load.drain()
        assert load.violations() == []
        for number, status in enumerate(statuses):
            stored = machine.call("GET", f"{path}/e{number}").status
            assert stored == (200 if status == 201 else 404)


@pytest.mark.parametrize("options", [(), ("--gateways", "1"), ("--gateways", "2")])
def test_a_failed_sync_ends_the_process(tmp_path: Path, strace: Strace, options: tuple[str, ...]) -> None:
    machine = Machine(tmp_path, *options)
    machine.start(*strace("inject=fdatasync:error=EIO:when=12", file=machine.store / FIRST_LOG))
    with machine, Receiver() as receiver:
        load = Load(machine, receiver, Shape(events=90, lead_ms=300, plain=0.1), 1)
        load.start()
        assert machine.code == BROKEN
        assert "the log could not be synced" in machine.log
        assert "acknowledged events are in its log: repair the disk and start again" in machine.log
        machine.start()
        load.finish()
        load.drain()
        assert load.violations() == []


def flip(path: Path, place: float) -> None:
    """Damage 64 bytes at a relative position of a file."""
    content = bytearray(path.read_bytes())
    start = int(len(content) * place)
    for index in range(start, min(start + 64, len(content))):
        content[index] ^= 0x5A
    path.write_bytes(content)


def largest(store: Path, pattern: str) -> Path:
    return max(store.glob(pattern), key=lambda path: path.stat().st_size)


def lose(path: Path) -> None:
    path.unlink()


DAMAGES: dict[str, tuple[bool, Callable[[Path], None]]] = {
    "the log, in the middle": (True, lambda store: flip(largest(store, "*.log"), 0.4)),
    "the log, at its beginning": (True, lambda store: flip(largest(store, "*.log"), 0.0)),
    "a table, in the middle": (False, lambda store: flip(largest(store, "*.sst"), 0.4)),
    "a table, at its end": (False, lambda store: flip(largest(store, "*.sst"), 0.99)),
    "the manifest": (False, lambda store: flip(largest(store, "MANIFEST-*"), 0.3)),
    "the marker": (False, lambda store: flip(store / "everbell.json", 0.0)),
    "CURRENT is gone": (False, lambda store: lose(store / "CURRENT")),
    "the manifest is gone": (False, lambda store: lose(largest(store, "MANIFEST-*"))),
    "a table is gone": (False, lambda store: lose(largest(store, "*.sst"))),
    "the log is gone": (True, lambda store: lose(largest(store, "*.log"))),
    "the marker is gone": (False, lambda store: lose(store / "everbell.json")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_refused(tmp_path: Path, damage: str) -> None:
    """An unreadable row is never treated as missing: the server says how to fix the store, and ends."""
    crashed, spoil = DAMAGES[damage]
    with Machine(tmp_path) as machine:
        machine.schedule_many([{"in": "1h", "to": "queue:q", "payload": "x" * 500} for _ in range(400)])
        if crashed:
            machine.kill()
        else:
            assert machine.stop() == 0
        spoil(machine.store)
        before = {path: path.read_bytes() for path in machine.store.glob("*.log")}
        # A table is read when an event in it is due, so damage within a table may be found after the store was opened.
        opened = machine.tries_to_start() or damage == "a table, in the middle"
        assert not opened or "a table" in damage, f"it started on a damaged store\n{machine.log}"
        assert machine.code == 1
        assert re.search(r"(restore (the store|it) from a backup|or the right one)\n", machine.log)
        assert "Traceback" not in machine.log
        after = {path: path.read_bytes() for path in machine.store.glob("*.log")}
        assert opened or before == after, "evidence was destroyed"
