from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fuzz import fuzz

ROOT = Path(__file__).parents[2]

PROPERTY = """\
from hypothesis import given, strategies as st

@given(st.integers(0, 1_000_000))
def test_a_property(number):
    assert number < {limit}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "unit").mkdir()
    shutil.copy(ROOT / "tests/conftest.py", tmp_path / "conftest.py")
    return tmp_path


def test_a_property_that_does_not_hold_is_found(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "unit/test_wrong.py").write_text(PROPERTY.format(limit=700_000))

    assert fuzz(7, 10, [(str(folder), "-m", "hypothesis")]) == pytest.ExitCode.TESTS_FAILED

    told = capfd.readouterr().out
    assert "assert 700000 < 700000" in told
    assert "make fuzz SEED=7 MINUTES=10" in told


def test_no_round_begins_after_the_time(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "unit/test_right.py").write_text(PROPERTY.format(limit=2_000_000))

    assert fuzz(7, 0.0001, [(str(folder), "-m", "hypothesis")]) == 0

    assert "nothing found" in capfd.readouterr().out
