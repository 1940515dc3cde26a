"""kill -9 of a real server under load: all acknowledged events arrive, in order, and every duplicate has an
explanation.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver

EVENTS = 1_500
KILLS = 4


@pytest.mark.parametrize(
    ("seed", "options", "plain"),
    [(1, (), 0.0), (2, (), 0.0), (3, ("--gateways", "1"), 0.0), (4, (), 0.3), (5, ("--gateways", "1"), 0.3)],
)
def test_kills_under_load_lose_nothing(tmp_path: Path, seed: int, options: tuple[str, ...], plain: float) -> None:
    dice = random.Random(seed)
    moments = sorted(dice.randrange(EVENTS // 10, EVENTS * 3 // 4) for _ in range(KILLS))
    with Receiver(seed) as receiver, Machine(tmp_path, *options) as machine:
        load = Load(machine, receiver, Shape(EVENTS, plain=plain), seed)
        load.start()
        for moment in moments:
            load.until_acknowledged(moment)
            machine.kill()
            machine.start()
        assert load.working, "the kills came after the end of the load"
        load.finish()
        load.drain()
        assert machine.starts == 1 + KILLS
        assert load.violations() == []
        assert machine.stop() == 0


def test_deliveries_in_flight_at_a_kill_are_repeated_with_the_same_ids(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path) as machine:
        events: list[dict[str, object]] = [
            {"in": 0, "to": receiver.url("/gate/once"), "payload": number, "id": f"e{number}"} for number in range(50)
        ]
        machine.schedule_many(events)
        until(lambda: len(receiver.on("/gate/once")) == 50, "all are in flight")
        machine.kill()
        receiver.open_gate("once")
        machine.start()
        until(lambda: len(receiver.received) == 100, "all delivered again")
        for number in range(50):
            machine.until_status(f"e{number}", "delivered")
        first, second = receiver.received[:50], receiver.received[50:]
        assert {(each.id, each.occurrence) for each in first} == {(each.id, each.occurrence) for each in second}
        assert max(each.epoch for each in first) < min(each.epoch for each in second)
