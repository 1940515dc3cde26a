"""Ordinary runs are the same everywhere: neither other modules nor the folder of the clone change an example."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parents[2]

# A test that writes down its examples, in a project with our conftest and a module that is full of constants.
EXAMPLES = """\
import json, pathlib
from hypothesis import given, strategies as st
seen = []

@given(st.integers(), st.text(), st.binary())
def test_some(number, text, data):
    seen.append(repr((number, text, data)))

def test_last():
    pathlib.Path("seen.json").write_text(json.dumps(seen))
"""
CONSTANTS = "".join(f"VALUE_{n} = ({n}_000_017, 'constant {n}', b'bytes {n}')\n" for n in range(1, 30))


def examples_in(folder: Path, *, imports: str = "") -> list[str]:
    (folder / "checks/unit").mkdir(parents=True)
    shutil.copy(ROOT / "tests/conftest.py", folder / "checks/conftest.py")
    (folder / "checks/unit/test_some.py").write_text(imports + EXAMPLES)
    (folder / "constants.py").write_text(CONSTANTS)
    command = [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", "-pno:schemathesis", "-pno:anyio"]
    subprocess.run([*command, "--rootdir", str(folder), "checks"], cwd=folder, capture_output=True, check=True)
    return list(json.loads((folder / "seen.json").read_text()))


def test_examples_do_not_depend_on_imported_modules(tmp_path: Path) -> None:
    alone = examples_in(tmp_path / "alone")
    assert len(alone) >= settings().max_examples
    assert examples_in(tmp_path / "crowd", imports="import constants\n") == alone


def test_examples_are_not_kept() -> None:
    assert settings().database is None
    assert settings().deadline is None
