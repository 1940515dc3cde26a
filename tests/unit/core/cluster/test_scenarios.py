"""Scenarios with golden traces: each file in `scenarios/` is a story with its expected outcome.

To write the outcome of a new or changed story, run with `EVERBELL_RETELL=1`, and read the outcome before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.core.cluster.storyteller import Storyteller

SCENARIOS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_has_its_golden_trace(path: Path) -> None:
    told = Storyteller().tell(path.read_text())

    if os.environ.get("EVERBELL_RETELL"):
        path.write_text(told)
    assert told == path.read_text()
