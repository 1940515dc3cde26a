"""Fixtures of the acceptance tests: a small disk that fills up quickly, and a way to break system calls."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Strace = Callable[..., list[str]]

# A shell starts background jobs with SIGINT ignored, and every process that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# `make acceptance` runs several files at a time. The longest ones begin first, so that none is left over at the end.
LONGEST_FIRST = ("test_cassandra", "test_bench", "test_cluster", "test_kafka", "test_log_faults")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.name.startswith(LONGEST_FIRST))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        # Only root can mount. Continuous integration runs as root, and there no test may be skipped unnoticed.
        missing = pytest.fail if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1" else pytest.skip
        missing(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    # Lazily: a failed test may still have files open.
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def strace(tmp_path: Path) -> Strace:
    """`strace("inject=…", file=…)`: the command that breaks system calls of the program it runs, only those on `file`.

    strace counts the calls of each thread separately. The traced process stays the child of the process that starts it
    (`-D`), so that a kill reaches it and its exit code is its own.
    """
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([program, "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"processes cannot be traced here: {probe.stderr.strip()}")

    def command(*expressions: str, file: Path | None = None) -> list[str]:
        calls = ",".join(sorted({expression.split("=")[1].split(":")[0] for expression in expressions}))
        wrapper = [program, "-D", "-f", "-q", "-o", str(tmp_path / "trace"), "-e", f"trace={calls}"]
        for expression in expressions:
            wrapper += ["-e", expression]
        return wrapper if file is None else [*wrapper, "-P", str(file)]

    return command
