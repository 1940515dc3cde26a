"""Outcomes on their way to a server in memory, on virtual time, while the client fails in ways of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from everbell.client.answers import Settled
from everbell.client.queue_calls import Failure
from everbell.client.settler import SURPRISES_MAX, Settler
from everbell.clock import Clock
from everbell.testing import run_virtual
from tests.unit.client.fake_leases import FakeLeases


class Clumsy(FakeLeases):
    """A client with acknowledgements that fail a number of times, with an unexpected error."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def ack(self, queue: str, leases: Sequence[str]) -> Settled:
        if self.times:
            self.times -= 1
            raise RuntimeError("a mistake in the client")
        return await super().ack(queue, leases)


def settled_by(server: FakeLeases) -> None:
    """Tell the server of one event that is done and one that failed."""

    async def main(clock: Clock) -> None:
        settler = Settler(server, "q", lambda failures: 0.5)
        settler.ack("done")
        settler.fail(Failure("failed", "no"))
        assert await settler.drain(60)

    run_virtual(main)


def test_a_surprise_is_outlived() -> None:
    server = Clumsy(SURPRISES_MAX - 1)
    settled_by(server)
    assert (server.acked, server.failed) == (["done"], [Failure("failed", "no")])


def test_surprises_without_an_end_hold_up_nothing_else_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Clumsy(1_000)
    settled_by(server)
    assert (server.acked, server.failed) == ([], [Failure("failed", "no")])
    assert "1 outcomes cannot be reported" in caplog.text
    assert "a mistake in the client" in caplog.text
