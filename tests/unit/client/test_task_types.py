"""Tasks are typed: mypy and pyright, in strict mode, accept correct programs of users and refuse incorrect ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

RIGHT = """\
from dataclasses import dataclass
from typing import assert_type
from everbell import App, Everbell, Occurrence, Scheduled, Task

@dataclass
class Reminder:
    user: int

app, bell = App(), Everbell()

@app.task
async def plain(reminder: Reminder) -> None: ...

@app.task(queue="mail", timeout="30s")
def both(reminder: Reminder, event: Occurrence[Reminder]) -> int:
    assert_type(event.payload, Reminder)
    return event.payload.user

@bell.task
async def whole(event: Occurrence[Reminder]) -> None:
    assert_type(event.payload, Reminder)

@bell.task
def nothing() -> None: ...

assert_type(plain, Task[Reminder])
assert_type(both, Task[Reminder])
assert_type(whole, Task[Reminder])
assert_type(nothing, Task[None])

async def use() -> None:
    assert_type(await plain.schedule(Reminder(7), in_="20m", key="k"), Scheduled)
    await both.every("1h", Reminder(7))
    await nothing.schedule()
"""
PYRIGHT = Path(__file__).parents[3] / ".build/npm/node_modules/.bin/pyright"
WRONG = (
    "await plain.schedule({'user': 7}, in_='20m')",
    "await both.schedule(7)",
    "await plain.schedule(Reminder(7), inn='20m')",
    "await whole.cron('* * * * *', 'text')",
)


@pytest.mark.parametrize("extra", ["", *WRONG], ids=["right", *(f"wrong-{number}" for number in range(len(WRONG)))])
def test_a_program_of_a_user_is_judged_by_its_types(tmp_path: Path, extra: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(RIGHT + (f"    {extra}\n" if extra else ""))
    out, _, code = api.run(["--strict", "--follow-imports=silent", "--no-error-summary", str(program)])
    assert (code == 0) is (extra == ""), out


def test_pyright_judges_the_same(tmp_path: Path) -> None:
    if not PYRIGHT.exists():
        missing = pytest.fail if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1" else pytest.skip
        missing("pyright is not installed: make page-tools installs it where npm is")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    (tmp_path / "right.py").write_text(RIGHT)
    for number, line in enumerate(WRONG):
        (tmp_path / f"wrong_{number}.py").write_text(f"{RIGHT}    {line}\n")
    command = [str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    found = sorted((Path(each["file"]).stem, each["severity"]) for each in report["generalDiagnostics"])
    assert found == [(f"wrong_{number}", "error") for number in range(len(WRONG))], report
