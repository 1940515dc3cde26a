"""An unexpected exception anywhere in the engine breaks no promise and leaves no caller without an answer."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest

from everbell.engine.supervisor import Supervisor
from tests.simulation.fault_campaign import play, wrong_at
from tests.simulation.fault_points import Place

PARTS = 8
"""The number of tests, so that they can run beside each other."""


@lru_cache
def places() -> Counter[Place]:
    """The calls that the scene makes without a fault."""
    scene, points = play()
    assert scene.wrong == []
    return points.seen


@pytest.mark.parametrize("part", range(PARTS))
def test_a_fault_at_any_call_ends_the_engine_or_fails_one_event(part: int) -> None:
    seen = places()
    assert len(seen) > 500
    for index, place in list(enumerate(sorted(seen)))[part::PARTS]:
        # The first call or the last one. `make sim` tries every call.
        assert wrong_at((*place, 1 if index % 3 else seen[place])) == []


@pytest.mark.parametrize(
    ("caller", "called"),
    [
        ("engine/agenda.py:Agenda._ring_due", "engine/engine.py:Engine._ring"),
        ("engine/edits.py:Edits.take", "engine/ordering.py:Lanes.begin_change"),
        ("engine/edits.py:Edits.store_all.<locals>.finish", "engine/edits.py:Edits._settle"),
    ],
)
def test_without_supervision_the_harness_notices_a_fault(
    caller: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = places()[caller, called]
    assert last
    monkeypatch.setattr(Supervisor, "end", lambda self, fault: None)
    assert any(wrong_at((caller, called, number)) for number in range(1, last + 1))
