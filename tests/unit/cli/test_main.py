"""Finding the command, and how commands end."""

from __future__ import annotations

import argparse
import io
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everbell.cli import main as main_module
from everbell.cli.main import MODULES, all_commands, find_command, main
from everbell.cli.parser import Subcommand
from everbell.errors import Conflict, Unreachable

CLI = Path(main_module.__file__).parent
COMMANDS = all_commands()


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a command of our own that raises."""

    def make(error: BaseException) -> list[str]:
        def run(args: argparse.Namespace) -> int:
            raise error

        odd = Subcommand("odd", "", "", "", (), run)
        monkeypatch.setattr(main_module, "import_module", lambda name: SimpleNamespace(odd=odd))
        return ["odd"]

    return make


def test_without_arguments_there_is_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "everbell demo" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"everbell {version('everbell')}\n"


def test_the_help_names_all_commands_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n    {name} " in text
    assert "3  the server cannot be reached" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_by_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"  everbell {name}" in text


@pytest.mark.parametrize(
    ("typed", "advice"),
    [("shedule", "did you mean schedule?"), ("lst", "did you mean list?"), ("xyzzy", "everbell help")],
)
def test_a_typo_gets_the_nearest_command(capsys: pytest.CaptureFixture[str], typed: str, advice: str) -> None:
    assert main([typed]) == 2
    err = capsys.readouterr().err
    assert f"there is no command {typed!r}" in err
    assert advice in err


@pytest.mark.parametrize(
    "typed", [["show", "\udcff"], ["list", "--key", "a\udcff"], ["schedule", '"\udcff"', "--in", "1h"], ["\udcff"]]
)
def test_arguments_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str], typed: list[str]) -> None:
    assert main(typed) == 2
    err = capsys.readouterr().err
    assert "\\udcff" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1"])
def test_characters_outside_the_locale_are_replaced(
    monkeypatch: pytest.MonkeyPatch, raising: Any, encoding: str
) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding))
    assert main(raising(Conflict("≤ 5"))) == 1
    sys.stdout.write("█\n")
    sys.stdout.flush()
    sys.stderr.flush()
    assert (out.getvalue(), err.getvalue()) == (b"?\n", b"everbell odd: ? 5\n")


def test_a_command_with_a_broken_module_raises_the_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(main_module, "import_module", broken)
    with pytest.raises(ImportError):
        main(["list"])


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (Conflict("it is\nover"), 1, "everbell odd: it is over\n"),
        (Unreachable("nobody"), 3, "everbell odd: nobody\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_exit_codes(
    capsys: pytest.CaptureFixture[str], raising: Any, error: BaseException, code: int, says: str
) -> None:
    assert main(raising(error)) == code
    assert capsys.readouterr().err == says


def test_a_fault_of_ours_is_not_hidden(raising: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        main(raising(ZeroDivisionError()))


def test_every_command_is_found_without_importing_all_modules() -> None:
    found = {name: find_command(name) for name in COMMANDS}
    assert found == COMMANDS
    with_commands = {f"everbell.cli.{path.stem}" for path in CLI.glob("*.py") if "\n@command(" in path.read_text()}
    assert with_commands == set(MODULES)


@pytest.mark.parametrize(
    ("asked", "shown"), [(["help"], "commands:"), (["help", "schedule"], "usage: everbell schedule")]
)
def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str], asked: list[str], shown: str) -> None:
    assert main(asked) == 0
    assert shown in capsys.readouterr().out


def test_help_for_an_unknown_command_gets_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "schedul"]) == 2
    assert "did you mean schedule?" in capsys.readouterr().err
