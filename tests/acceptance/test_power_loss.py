"""Power failures lose, tear and reorder unsynced writes: the store and the log open again with everything acknowledged.

`python -m tests.power_loss` tries more of them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.power_loss.crashes import crash, record_program


@pytest.mark.usefixtures("strace")  # Skips the test where processes cannot be traced.
@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_failure_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    recording = record_program(tmp_path / "run", seed, 200)
    verdicts = list(crash(recording, Random(seed), 0.15, tmp_path))
    assert len(verdicts) > 200
    assert [verdict for _, verdict in verdicts if verdict is not None] == []
