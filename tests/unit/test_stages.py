from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.stages import run


def scripted(**scripts: str) -> dict[str, Sequence[str]]:
    return {name: (sys.executable, "-c", script) for name, script in scripts.items()}


def test_stages_are_shown_one_after_the_other_and_summed_up(tmp_path: Path) -> None:
    commands = scripted(
        lint="print('all is tidy')",
        unit="print('=== 3 passed in 0.1s ===')",
        acceptance="print('=== 2 passed in 9s ===')",
    )
    out = io.StringIO()

    assert run(("lint", "unit"), "acceptance", commands.__getitem__, tmp_path, out)

    shown, _, summary = out.getvalue().partition("\n== summary\n")
    assert [line for line in shown.splitlines() if line] == [
        *("== lint", "all is tidy"),
        *("== unit", "=== 3 passed in 0.1s ==="),
        *("== acceptance", "=== 2 passed in 9s ==="),
    ]
    assert [line.split()[:2] for line in summary.splitlines()] == [["lint", "ok"], ["unit", "ok"], ["acceptance", "ok"]]
    assert summary.splitlines()[1].endswith("s CPU  3 passed in 0.1s")


@pytest.mark.parametrize("failing", ["lint", "unit", "acceptance"])
def test_one_that_fails_keeps_none_of_the_others_from_running(tmp_path: Path, failing: str) -> None:
    scripts = dict.fromkeys(("lint", "unit", "acceptance"), "print('ran')")
    commands = scripted(**scripts | {failing: "print('ran'); raise SystemExit(2)"})
    out = io.StringIO()

    assert not run(("lint", "unit"), "acceptance", commands.__getitem__, tmp_path, out)

    rows = [line.split()[:2] for line in out.getvalue().partition("\n== summary\n")[2].splitlines()]
    assert rows == [[name, "FAILED" if name == failing else "ok"] for name in ("lint", "unit", "acceptance")]
    assert out.getvalue().splitlines().count("ran") == 3


def test_a_stage_that_runs_beside_is_stopped_with_the_others(tmp_path: Path) -> None:
    """Both wait for ever, and the first tells when the other one has begun: then the user presses Ctrl-C."""
    begun = tmp_path / "begun"
    waits = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    commands = scripted(unit="import time; time.sleep(600)", acceptance=waits)

    class Impatient(io.StringIO):
        def flush(self) -> None:
            if begun.exists():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(("unit",), "acceptance", commands.__getitem__, tmp_path, Impatient())

    assert "KeyboardInterrupt" in (tmp_path / "acceptance.log").read_text()
