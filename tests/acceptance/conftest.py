"""What the acceptance tests share: a disk that is soon full, and a way to break system calls."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Strace = Callable[..., list[str]]

# Whoever runs the tests in the background of a shell has SIGINT ignored, and every process that is started from here
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        # Who is not root cannot; continuous integration is, and there nothing is skipped unseen.
        missing = pytest.fail if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1" else pytest.skip
        missing(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    # Lazily: a test that failed may still have files open.
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def strace(tmp_path: Path) -> Strace:
    """`strace("inject=…", file=…)`: the command that breaks system calls of what it runs, only those on `file`.

    It counts the calls of each thread by itself. The traced process stays the child of whoever starts it (`-D`), so
    that a kill and an exit code are its own.
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
