"""Random programs, run on a log and on a model: all visible results have to be the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from everbell.errors import Trimmed
from everbell.logs.port import Log, LogEntry, Snapshot
from tests.conformance.logs import PLACES, Place

LONG_MS = 600_000
MEMBERS = ["a/1", "a/2", "b/1"]

handles = st.integers(0, 1)
members = st.sampled_from(MEMBERS)


class LogModel:
    """Computes the answers that a log should give from all appended entries."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.trimmed = 0
        self.snapshot: Snapshot | None = None
        self.living: set[str] = set()

    def read(self, after: int, limit: int) -> list[LogEntry] | None:
        """None if the log has to raise `Trimmed`."""
        if after < self.trimmed:
            return None
        return [LogEntry(index, data) for index, data in enumerate(self.commands, 1) if after < index <= after + limit]

    def save(self, snapshot: Snapshot, keep: int) -> None:
        if self.snapshot is None or self.snapshot.index < snapshot.index:
            self.snapshot = snapshot
            self.trimmed = max(self.trimmed, snapshot.index - keep)


class LogMachine(RuleBasedStateMachine):
    """Programs of all operations of the port, and of closing and opening, by two handles of one log."""

    make: Callable[[Path], Place]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="everbell-test-"))
        self.place = type(self).make(self.folder)
        self.logs: list[Log] = []
        self.model = LogModel()
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        self.runner.run(self.place.close())
        self.runner.close()
        rmtree(self.folder)

    @initialize()
    def open(self) -> None:
        self.logs = [self.runner.run(self.place.open()) for _ in range(2)]

    @rule(handle=handles, data=st.binary(max_size=3))
    def append(self, handle: int, data: bytes) -> None:
        self.model.commands.append(data)
        assert self.runner.run(self.logs[handle].append(data)) == len(self.model.commands)

    @rule(handle=handles, after=st.integers(0, 12), limit=st.integers(1, 5))
    def read(self, handle: int, after: int, limit: int) -> None:
        assert self.runner.run(_read(self.logs[handle], after, limit)) == self.model.read(after, limit)

    @precondition(lambda self: self.model.commands)
    @rule(handle=handles, data=st.data(), content=st.binary(max_size=3), keep=st.integers(0, 4))
    def save(self, handle: int, data: st.DataObject, content: bytes, keep: int) -> None:
        snapshot = Snapshot(data.draw(st.integers(1, len(self.model.commands))), content)
        self.model.save(snapshot, keep)
        self.runner.run(self.logs[handle].save(snapshot, keep))

    @precondition(lambda self: self.model.commands)
    @rule(handle=handles)
    def wait_for_what_is_there(self, handle: int) -> None:
        self.runner.run(self.logs[handle].wait(len(self.model.commands) - 1, LONG_MS))

    @rule(handle=handles, member=members)
    def renew(self, handle: int, member: str) -> None:
        self.model.living.add(member)
        self.runner.run(self.logs[handle].renew(member, LONG_MS))

    @rule(handle=handles, member=members)
    def release(self, handle: int, member: str) -> None:
        self.model.living.discard(member)
        self.runner.run(self.logs[handle].release(member))
        self.runner.run(self.logs[1 - handle].ended(member))

    @rule()
    def reopen(self) -> None:
        # Closing may end leases, but need not.
        for member in sorted(self.model.living):
            self.release(0, member)
        self.runner.run(self.place.close())
        self.open()

    @invariant()
    def everything_that_can_be_seen_is_right(self) -> None:
        if self.logs:
            self.runner.run(self._look(self.logs[len(self.model.commands) % 2]))

    async def _look(self, log: Log) -> None:
        model, last = self.model, len(self.model.commands)
        assert await log.load() == model.snapshot
        # The first index that is not trimmed, and the one before.
        for after in {max(model.trimmed - 1, 0), model.trimmed}:
            assert await _read(log, after, last + 1) == model.read(after, last + 1)
        assert {member for member in MEMBERS if await log.lives(member)} == model.living


async def _read(log: Log, after: int, limit: int) -> list[LogEntry] | None:
    try:
        return list(await log.read(after, limit))
    except Trimmed:
        return None


@pytest.mark.parametrize(
    ("name", "percent"), [("memory", 80), ("local", 40), ("postgres", 8), ("zookeeper", 10), ("cassandra", 2)]
)
def test_random_programs_give_the_same_results_on_a_log_and_on_the_model(name: str, percent: int) -> None:
    # Make a place before Hypothesis begins, so that a missing server skips the test.
    make = PLACES[name]
    make(Path())
    machine = type("Machine", (LogMachine,), {"make": staticmethod(make)})
    examples = settings().max_examples * percent // 100
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=20))
