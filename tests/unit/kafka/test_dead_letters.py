"""Dead letters without a broker: as many as there are, and no more at a time than there is room for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everbell.kafka import dead_letters
from everbell.kafka.dead_letters import DeadLetters
from everbell.kafka.outlet import OnReport
from everbell.kafka.record import KafkaRecord, PoisonRecord
from everbell.kafka.settings import KafkaCluster
from everbell.testing import VirtualClock, run_virtual

ROOM = 1_500


class Outlet:
    """Has room for some records, and reports each a second later."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int) -> None:
        self.sent: list[bytes | None] = []
        self.under_way = self.most = 0
        self.full = 0

    def send(self, topic: str, value: bytes | None, key: bytes | None, headers: Any, report: OnReport) -> None:
        if self.under_way == ROOM or self.full:
            self.full = max(self.full - 1, 0)
            raise BufferError("Local: Queue full")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.sent.append(value)
        asyncio.get_running_loop().call_later(1, report, None)

    def answered(self, count: int) -> None:
        self.under_way -= count


@pytest.mark.parametrize("full", [0, 3])
def test_thousands_of_letters_are_written_some_at_a_time(monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    monkeypatch.setattr(dead_letters, "Outlet", Outlet)
    poisons = [PoisonRecord(KafkaRecord("in", 0, number, 0, None, b"%d" % number), "no") for number in range(4_000)]

    async def main(clock: VirtualClock) -> None:
        letters = DeadLetters(KafkaCluster("127.0.0.1:1"), "dead")
        outlet: Any = letters._outlet
        outlet.full = full
        await letters.send_all(poisons)
        assert sorted(outlet.sent, key=int) == [b"%d" % number for number in range(4_000)]
        assert outlet.most <= ROOM
        assert letters.unwritten == 0

    run_virtual(main)
