"""The page about the capabilities of other systems is in step with the code: its files and tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "seeds.md"
COUNTS = {"000": 32, "001": 44, "002": 26, "003": 26, "004": 28}
"""How many capabilities each document states."""

_CELLS = 4
_NUMBER = re.compile(r"(\d{3})-(\d+)")
_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"tests/\w+(?:/\w+)*/test_\w+\.py::test_\w+")


def rows() -> list[list[str]]:
    """The cells of every row that has a number."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| 0")]
    return [[cell.strip() for cell in line] for line in lines]


def named_tests() -> list[str]:
    return sorted({test for row in rows() for test in _TEST.findall(row[-1])})


def test_every_capability_has_a_complete_row() -> None:
    numbers: dict[str, list[int]] = {}
    for row in rows():
        assert len(row) == _CELLS, row
        assert all(row), row
        match = _NUMBER.fullmatch(row[0])
        assert match is not None, row
        numbers.setdefault(match[1], []).append(int(match[2]))
        assert _CODE.findall(row[2]), f"{row[0]} names no file"
        assert _TEST.findall(row[3]), f"{row[0]} names no test"
    assert numbers == {document: list(range(1, count + 1)) for document, count in COUNTS.items()}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_files_of_a_row_exist(row: list[str]) -> None:
    for name in _CODE.findall(row[2]):
        assert (ROOT / "src" / "everbell" / name).is_file(), f"{row[0]} names {name}"


def test_every_named_test_is_collected() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0"]
    found = subprocess.run([*command, *named_tests()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2_000:] + found.stderr[-2_000:]
    collected = {line.partition("[")[0] for line in found.stdout.splitlines()}
    assert set(named_tests()) <= collected
