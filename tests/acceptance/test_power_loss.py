"""Power failures lose, tear and reorder unsynced writes: the store and the log open again with everything acknowledged.

`python -m tests.power_loss` tries more of them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.power_loss.crashes import crash, flip, record_program


@pytest.mark.usefixtures("strace")  # Skips the test where processes cannot be traced.
@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_failure_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    recording = record_program(tmp_path / "run", seed, 200)
    verdicts = list(crash(recording, Random(seed), 0.15, tmp_path))
    assert len(verdicts) > 200
    assert [verdict for _, verdict in verdicts if verdict is not None] == []


@pytest.mark.usefixtures("strace")
def test_a_flipped_bit_in_any_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    """The store and the log refuse to open, or have everything: they never have less without a word."""
    recording = record_program(tmp_path / "run", 3, 120)
    verdicts = list(flip(recording, Random(3), 40, tmp_path))
    silent = [(path, verdict) for path, verdict in verdicts if verdict is not None and "does not open" not in verdict]
    assert silent == []
    refused = {path.rpartition("/")[2].partition("-")[0] for path, verdict in verdicts if verdict is not None}
    assert {"MANIFEST", "CURRENT", "everbell.json", "entries"} <= refused
    assert {path[-4:] for path in refused} >= {".log", ".sst"}
