"""The pytest plugin, as installed with the package; and the example in the docs runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE, MARKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
# Plugins of other packages that are installed here, and that take seconds to load.
OTHERS = ("anyio", "asyncio", "hypothesispytest", "schemathesis", "timeout", "xdist", "xdist.looponfail")


def pytest_in(folder: Path, *options: str, beside: str = "") -> str:
    others = [f"-pno:{name}" for name in OTHERS if name != beside]
    command = [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", *others, "--rootdir", str(folder), *options]
    done = subprocess.run([*command, str(folder)], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(EXAMPLE)
    (tmp_path / "test_marks.py").write_text(MARKS)
    told = pytest_in(tmp_path)
    assert "5 passed" in told, told


ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_the_example_of_the_docs_runs_beside_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_shop.py").write_text(EXAMPLE)
    (tmp_path / "test_marked.py").write_text(EXAMPLE + "\nimport pytest\npytestmark = pytest.mark.asyncio\n")
    (tmp_path / "test_real_time.py").write_text(
        "import asyncio, pytest\n@pytest.mark.asyncio\nasync def test_other():\n    await asyncio.sleep(0)\n"
    )
    told = pytest_in(tmp_path, "-o", f"asyncio_mode={mode}", *ASYNCIO, beside="asyncio")
    assert "7 passed" in told, told


def test_a_test_may_have_async_fixtures_of_pytest_asyncio(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.fixture\nasync def order():\n    yield 17\n"
        "async def test_it(bell, order):\n"
        "    await bell.schedule(order, to='https://a.example/', in_='3 days')\n"
        "    await bell.advance('3 days')\n"
        "    assert [each.payload for each in bell.delivered] == [17]\n"
    )
    told = pytest_in(tmp_path, "-o", "asyncio_mode=auto", *ASYNCIO, beside="asyncio")
    assert "1 passed" in told, told


def test_the_example_of_the_docs_runs_beside_anyio(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(EXAMPLE + "\nimport pytest\npytestmark = pytest.mark.anyio\n")
    told = pytest_in(tmp_path, "-o", "anyio_mode=auto", beside="anyio")
    assert "passed" in told, told
    assert "failed" not in told, told


def test_virtual_time_starts_when_the_mark_says(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\nfrom datetime import UTC, datetime, timedelta\n"
        "@pytest.mark.everbell(start='now')\nasync def test_now(bell):\n"
        "    assert abs(datetime.now(UTC) - bell.now) < timedelta(hours=1)\n"
        "@pytest.mark.everbell('shop', start='2026-03-29T00:59:00+01:00')\nasync def test_given(bell):\n"
        "    assert bell.now == datetime(2026, 3, 28, 23, 59, tzinfo=UTC)\n"
        "    assert (await bell.get((await bell.schedule(1, to='queue:a', in_=1)).id)).tenant == 'shop'\n"
    )
    told = pytest_in(tmp_path, "--strict-markers")
    assert "2 passed" in told, told


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
