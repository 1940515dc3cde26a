"""The previous version of Everbell, from the repository's own history. The new version must open the data that the
previous version stored, and their nodes must work in one cluster.

`previous_version.txt` names the commit. Its `src/` is extracted from the history once, into `.build/previous/<commit>`,
and run with the Python and the libraries of these tests. If the history is missing (a shallow clone, a source archive),
the test that asked is skipped and says why; with EVERBELL_REQUIRE_SERVICES=1 it fails.
"""

from __future__ import annotations

import compileall
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED_IN = ROOT / "tests/previous_version.txt"
BUILDS = ROOT / ".build/previous"


@dataclass(frozen=True)
class Version:
    """A version of Everbell that can be run."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    """The variables that make Python find this version."""
    command: tuple[str, ...] = (sys.executable, "-m", "everbell")


NEW = Version("new")
"""The version under test: the working tree."""


class HistoryMissing(Exception):
    """This clone does not contain the commit."""


@cache
def previous() -> Version:
    """The previous version. If its commit is missing, the test is skipped or fails."""
    try:
        source = taken_out(NAMED_IN.read_text().strip(), BUILDS)
    except HistoryMissing as missing:
        if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    # PYTHONPATH comes before the installed package, and every process that this version starts inherits it.
    return Version("previous", {"PYTHONPATH": str(source)})


def taken_out(commit: str, builds: Path) -> Path:
    """The `src` of a commit, in a folder of its own. Raises `HistoryMissing`."""
    folder = builds / commit
    if not folder.exists():
        archive = _archive(commit)
        builds.mkdir(parents=True, exist_ok=True)
        # The folder has another name until it is complete: an interrupted process leaves no half-filled `folder`.
        filling = Path(tempfile.mkdtemp(prefix="filling-", dir=builds))
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(filling, filter="data")
            # The tests start this version often, so its modules are compiled once.
            compileall.compile_dir(filling / "src", ddir=str(folder / "src"), quiet=2)
            filling.rename(folder)
        except OSError:
            if not folder.exists():  # Otherwise another process has filled it.
                raise
        finally:
            shutil.rmtree(filling, ignore_errors=True)
    return folder / "src"


def _archive(commit: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "src"], capture_output=True, check=False
        )
    except FileNotFoundError:
        raise HistoryMissing(
            "the previous version is taken out of the history by git, which is not installed"
        ) from None
    if done.returncode:
        raise HistoryMissing(
            f"the previous version, commit {commit}, cannot be taken out of the history "
            f"({done.stderr.decode().strip()}): it needs a full clone (git fetch --unshallow)"
        )
    return done.stdout
