"""Waiting for the end of a lease on a server: the wait goes on through all failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from everbell.errors import LogUnavailable, LogUnusable
from everbell.logs.cassandra import CassandraLog
from everbell.logs.postgres import PostgresLog
from everbell.logs.signal import Signal
from everbell.logs.zookeeper_leases import ZookeeperLeases
from everbell.testing import VirtualClock, run_virtual


def answering() -> Callable[[str], Any]:
    """A question that fails in two ways, and then says that nothing is left of the lease."""
    failures = [LogUnavailable("it is away"), LogUnusable("the password is another one")]

    async def ask(member: str) -> float:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        return 0.0

    return ask


@pytest.mark.parametrize(
    ("log", "parts"),
    [
        (PostgresLog, {"_left_s": answering(), "_news": Signal()}),
        (CassandraLog, {"_left_s": answering(), "_news": Signal()}),
        (ZookeeperLeases, {"_left_s": answering(), "_session": SimpleNamespace(news=Signal())}),
    ],
)
def test_a_log_that_refuses_for_a_while_is_asked_again(log: Any, parts: dict[str, Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        await log.ended(SimpleNamespace(**parts), "n1/x")

    run_virtual(main)
