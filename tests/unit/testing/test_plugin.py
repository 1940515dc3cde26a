"""The pytest plugin, as installed with the package; and the example in the docs runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Plugins of other packages that are installed here, and that take seconds to load.
OTHERS = ("anyio", "hypothesispytest", "schemathesis", "timeout", "xdist", "xdist.looponfail")


def pytest_in(folder: Path, *options: str) -> str:
    others = [f"-pno:{name}" for name in OTHERS]
    command = [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", *others, "--rootdir", str(folder), *options]
    done = subprocess.run([*command, str(folder)], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    (tmp_path / "test_shop.py").write_text("\n".join(blocks))
    assert "3 passed" in pytest_in(tmp_path)


def test_a_failure_is_a_failure_and_a_test_without_a_bell_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "async def test_wrong(bell):\n    assert bell.delivered == [1]\n"
        "def test_plain():\n    pass\n"
        "def test_not_async(bell):\n    assert bell.attempts == []\n"
    )
    told = pytest_in(tmp_path)
    assert "1 failed, 2 passed" in told
    assert "assert [] == [1]" in told


def test_a_test_that_waits_for_ever_fails(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import asyncio\nasync def test_stuck(bell):\n    await bell.close()\n    await asyncio.Event().wait()\n"
    )
    assert "Deadlock" in pytest_in(tmp_path)
